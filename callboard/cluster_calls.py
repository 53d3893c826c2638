"""Requests about the deployment, as data like those of `calls.py`: members, draining, the books.

Reference: decision cluster-and-releases; money.md (Checking the books).
"""

from __future__ import annotations

from callboard.calls import sending


@sending("GET", "/v1/cluster")
def cluster() -> None:
    """Read the members of the cluster and what they hold; for administrators."""


@sending("POST", "/v1/cluster/machines/{machine}/drain")
def drain_machine(machine: str) -> None:
    """Let a machine give its work to others; it stays drained until it is resumed.

    Args:
        machine: its id, or at least six characters with which that one alone begins.
    """


@sending("POST", "/v1/cluster/machines/{machine}/resume")
def resume_machine(machine: str) -> None:
    """Let a machine that was drained take work again; `machine` as for draining."""


@sending("GET", "/v1/ledger/check")
def books() -> None:
    """Read the newest result of the check of the books; for administrators."""


@sending("POST", "/v1/ledger/check")
def check_books() -> None:
    """Request a check of the books; `books` has its result later; for administrators."""
