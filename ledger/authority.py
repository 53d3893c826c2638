"""What a caller's command carries of its caller: the credential that it was given with, and the
right beyond those of a usual key that permitted it, with the reason.

The right is written into the audit entry of the command; the writer asks whether the credential is
one still (`ledger/features/credentials.py`). Decision permissions-and-keys.
"""

from __future__ import annotations

from core.message import Message
from ledger.commands import Command


class Authority(Message, frozen=True):
    """A single right that was used, and the reason that its holder gave; "" for none."""

    right: str
    reason: str = ""


class SignedBy(Message, frozen=True):
    """A DID's signature over the request: by this public key, base64 of its 32 bytes."""

    did: str
    public_key: str


class OpenedBy(Message, frozen=True):
    """An API key, by its id.

    `key_hash`: SHA-256 of the secret that was given.
    """

    key_id: str
    key_hash: bytes = b""
    owner_did: str = ""


# None: the credential cannot have ended since authentication (access token).
Credential = SignedBy | OpenedBy | None


class PermittedCommand(Command, frozen=True, kw_only=True):
    """A command that a caller may have asked for.

    `actor_did`: who gives it, as the audit entry says.
    `authority` None: a usual key's rights were enough, or none asked.
    """

    actor_did: str
    authority: Authority | None = None


class AuthorizedCommand(PermittedCommand, frozen=True, kw_only=True):
    """A command that a caller gives. `Call.authorized` of the API fills in what follows the caller:
    a key, unless the command is one that can be given once; the actor; whether it is an
    administrator; the authority and the credential.
    """

    key: str = ""
    actor_did: str = ""
    credential: Credential = None


class OwnersCommand(AuthorizedCommand, frozen=True, kw_only=True):
    """A command that only the owner of what it changes may give, or an administrator.

    `is_admin`: the actor is one; the ledger decides who is the owner.
    """

    is_admin: bool = False
