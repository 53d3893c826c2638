"""Which version of the code everything in a cluster understands, while it is upgraded.

Pure. Decision cluster-and-releases.
"""

from __future__ import annotations

from collections.abc import Iterable

# Of the code that does not tell its ledger's answer: the first one with shards.
FIRST_VERSION = 2


def cluster_version(members: Iterable[str], ledgers: int) -> int:
    """Return the lowest version among the members and the ledger.

    What only code of a later version understands is neither sent nor stored until then. It is
    raised with the end of the last member of before, and lowered when one joins, which is how an
    upgrade is taken back.

    Args:
        members: of each that is not GONE, what it said when it joined: digits.
        ledgers: the version of the ledger's code.
    """
    return min([ledgers, *(int(text) if text.isdecimal() else 0 for text in members)])
