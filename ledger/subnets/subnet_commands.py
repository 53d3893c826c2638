"""Commands about subnets, their members and their policies.

Plain values, as `ledger/commands.py` says. Reference: features.md (Subnets and policies).
"""

from __future__ import annotations

from core.records.statuses import SubnetType
from core.subnets.policies import Policy
from ledger.authority import OwnersCommand


class CreateSubnet(OwnersCommand, frozen=True, kw_only=True):
    """Create a subnet. Its creator owns it.

    `member_dids`: are listed, the creator among them; the creator, its agents, and all that an
    administrator lists, join. Rejection: CONFLICT (too many subnets). Result: {}.
    """

    subnet_id: str
    name: str
    description: str
    policy_type: SubnetType
    member_dids: tuple[str, ...]


class RemoveSubnet(OwnersCommand, frozen=True, kw_only=True):
    """Remove a subnet, its members and its policies; its owner's act.

    Rejections: NOT_FOUND (also: hidden from the caller), FORBIDDEN. Result: {}.
    """

    subnet_id: str


class AddSubnetMember(OwnersCommand, frozen=True, kw_only=True):
    """List a DID in a subnet, or let it join: its own act, its owner's or an administrator's.

    Rejections: NOT_FOUND (also: hidden from the caller), FORBIDDEN, CONFLICT (too many members, or
    too many subnets that the DID has joined).
    Result: {"isJoined": bool}.
    """

    subnet_id: str
    member_did: str


class RemoveSubnetMember(OwnersCommand, frozen=True, kw_only=True):
    """Remove a DID from a subnet: an act of the subnet's owner, of the DID, or of its owner.

    Rejections: NOT_FOUND (also: no member), FORBIDDEN. Result: {}.
    """

    subnet_id: str
    member_did: str


class CreatePolicy(OwnersCommand, frozen=True, kw_only=True):
    """Add a policy to a subnet; its owner's act.

    Rejections: NOT_FOUND, FORBIDDEN, CONFLICT (too many policies). Result: {"createdMs"}.
    """

    policy: Policy


class RemovePolicy(OwnersCommand, frozen=True, kw_only=True):
    """Remove a policy of a subnet; its owner's act.

    Rejections: NOT_FOUND, FORBIDDEN. Result: {}.
    """

    policy_id: str
