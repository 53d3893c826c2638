"""How a command was authorized: the caller's credential, and the single right that permitted it.

The single right and the reason for its use are written into the command's audit entry. The writer
checks that the credential has not ended (`ledger/features/credentials.py`). Decision
permissions-and-keys.
"""

from __future__ import annotations

from core.message import Message
from ledger.commands import Command


class Authority(Message, frozen=True):
    """The single right that permitted a command. `reason`: the caller's reason, or ""."""

    right: str
    reason: str = ""


class SignedBy(Message, frozen=True):
    """The caller's credential is a DID's signature over the request.

    `public_key`: the key that verifies the signature, base64 of 32 bytes.
    """

    did: str
    public_key: str


class OpenedBy(Message, frozen=True):
    """The caller's credential is an API key.

    `key_hash`: SHA-256 of the secret in the request; b"": the secret is not checked.
    """

    key_id: str
    key_hash: bytes = b""
    owner_did: str = ""


# None: the credential cannot end after authentication (an access token).
Credential = SignedBy | OpenedBy | None


class PermittedCommand(Command, frozen=True, kw_only=True):
    """A command that can result from a caller's request.

    `actor_did`: the actor in the audit entry. `authority` None: no single right was needed.
    """

    actor_did: str
    authority: Authority | None = None


class AuthorizedCommand(PermittedCommand, frozen=True, kw_only=True):
    """A command that a caller gives. `Call.authorized` of the API fills in the fields that depend
    on the caller: the actor, `is_admin`, the authority and the credential. It also fills in the key
    if the command has none.
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
