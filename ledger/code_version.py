"""The version of this code as the schema counts it (`callboard.compatibility`).

It grows by one with every release whose code writes what earlier code must not meet; a `post`
migration of that release then asks for it. Decision postgres.
"""

from __future__ import annotations

from typing import Final

CODE_VERSION: Final = 2
