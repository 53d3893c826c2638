"""How a command was authorized: the caller's credential, and the single right that permitted it.

The single right and the reason for its use are written into the command's audit entry. The writer
checks that the credential has not ended (`ledger/features/credentials.py`). Decision
permissions-and-keys.
"""

from __future__ import annotations

from core.message import Message
from ledger.commands import Command


class Authority(Message, frozen=True):
    """A single right that was used, and the reason that the caller gave, "" for none."""

    right: str
    reason: str = ""


class SignedBy(Message, frozen=True):
    """A DID's signature over the request, made with this public key (base64 of 32 bytes)."""

    did: str
    public_key: str


class OpenedBy(Message, frozen=True):
    """An API key.

    `key_id`: its id. `key_hash`: SHA-256 of the secret in the request, b"" if it is not checked.
    """

    key_id: str
    key_hash: bytes = b""
    owner_did: str = ""


# None: the credential cannot end after authentication (an access token).
Credential = SignedBy | OpenedBy | None


class PermittedCommand(Command, frozen=True, kw_only=True):
    """A command that callers may cause.

    `actor_did`: the caller in the audit entry. `authority` None: no single right was needed.
    """

    actor_did: str
    authority: Authority | None = None


class AuthorizedCommand(PermittedCommand, frozen=True, kw_only=True):
    """A command that a caller gives. `Call.authorized` of the API fills in what depends on the
    caller: the actor, whether it is an administrator, the authority and the credential. It also
    fills in the key, unless the command type has a key of its own.
    """

    key: str = ""
    actor_did: str = ""
    credential: Credential = None


class OwnersCommand(AuthorizedCommand, frozen=True, kw_only=True):
    """A command that only the owner of the changed object, or an administrator, may give.

    `is_admin`: the actor is an administrator. The ledger checks who the owner is.
    """

    is_admin: bool = False

    def may_act_for(self, *dids: str) -> bool:
        """Say whether the actor is one of these DIDs, or an administrator."""
        return self.is_admin or self.actor_did in dids
