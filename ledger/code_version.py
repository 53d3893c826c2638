"""The version of this code, which the schema may require (`callboard.compatibility`).

It rises by one with every release whose code writes rows that earlier code must not meet. A `post`
migration of that release then requires the version. Decision postgres.
"""

from __future__ import annotations

from typing import Final

CODE_VERSION: Final = 2
