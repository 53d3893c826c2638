"""Commands of workflow owners: a new epoch, and the claim of what a silent owner has.

Plain values, as `ledger/commands.py` says. design.md section 3 (Starting and owning).
"""

from __future__ import annotations

from core.message import Message


class RegisterOwner(Message, frozen=True, kw_only=True):
    """A workflow actor starts: a new epoch fences its predecessors of the same name off.

    Result: {"epoch": int}. Not stored under its key (each start is a new epoch).
    """

    key: str
    owner: str
    address: str


class ClaimWorkflows(Message, frozen=True, kw_only=True):
    """Take over every unfinished workflow of `from_owner` and fence it off (its epoch grows).

    `from_epoch`: the epoch seen as silent; if it has grown, the command is rejected (CONFLICT).
    Result: {"claimed": int}.
    """

    key: str
    from_owner: str
    from_epoch: int
    to_owner: str
    to_epoch: int
