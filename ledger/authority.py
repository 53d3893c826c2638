"""By which right beyond those of a usual key a command was permitted, and why it was given.

Written into the audit entry of the command. contract.md section 3; decision 0223.
"""

from __future__ import annotations

from core.message import Message


class Authority(Message, frozen=True):
    """A single right that was used, and the reason that its holder gave; "" for none."""

    right: str
    reason: str = ""


class AuthorizedCommand(Message, frozen=True, kw_only=True):
    """A command that a caller gives. `authority` None: a usual key's rights were enough."""

    authority: Authority | None = None
