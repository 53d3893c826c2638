"""The version of this code, which the schema may require (`callboard.compatibility`).

It rises by one with each release that writes rows which earlier code cannot handle. A `post`
migration of such a release requires its version. Decision postgres.
"""

from __future__ import annotations

from typing import Final

CODE_VERSION: Final = 2
