"""Commands about subnets: who joins, who is listed, and what owners and readers then see."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from core.errors import ErrorCode
from core.records.statuses import PolicyType, SubnetType
from core.subnets.policies import NodeRate, Policy
from ledger.commands import OutcomeStatus
from ledger.features.directory import SUBNETS
from ledger.features.subnets import (
    AddSubnetMember,
    CreatePolicy,
    CreateSubnet,
    RemovePolicy,
    RemoveSubnet,
    RemoveSubnetMember,
    binding_policies,
    has_joined,
    subnet_rows,
)
from ledger.reads.prepared_reads import PreparedReads
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    PAYER,
    Flow,
    card,
    new_key,
)
from tests.ledger.test_quotas import quota

ID = "0197d000-0000-7000-8000-00000000b001"
POLICY_ID = "0197d000-0000-7000-8000-00000000b002"
OWNER, OTHER = "did:test:owner", "did:test:other"


def subnet(*member_dids: str, subnet_id: str = ID, **changes: Any) -> CreateSubnet:
    """Create a private subnet."""
    fields: dict[str, Any] = {"actor_did": OWNER, "policy_type": SubnetType.PRIVATE, **changes}
    return CreateSubnet(
        key=new_key(), subnet_id=subnet_id, name="team", description="",
        member_dids=(fields["actor_did"], *member_dids), **fields,
    )  # fmt: skip


def added(did: str, **changes: Any) -> AddSubnetMember:
    """List a DID, or let it join."""
    fields = {"actor_did": OWNER, **changes}
    return AddSubnetMember(key=new_key(), subnet_id=ID, member_did=did, **fields)


def removed(did: str, **changes: Any) -> RemoveSubnetMember:
    """Remove a DID."""
    fields = {"actor_did": OWNER, **changes}
    return RemoveSubnetMember(key=new_key(), subnet_id=ID, member_did=did, **fields)


def ended(**changes: Any) -> RemoveSubnet:
    """Remove the subnet."""
    return RemoveSubnet(**{"key": new_key(), "actor_did": OWNER, "subnet_id": ID, **changes})


def policy(policy_id: str = POLICY_ID, **changes: Any) -> CreatePolicy:
    """Add a policy that denies a capability."""
    one = Policy(id=policy_id, subnet_id=ID, kind=PolicyType.DENY_CAPABILITY, capability="cap.x")
    return CreatePolicy(**{"key": new_key(), "actor_did": OWNER, "policy": one, **changes})


def lifted(**changes: Any) -> RemovePolicy:
    """Remove the policy."""
    return RemovePolicy(**{"key": new_key(), "actor_did": OWNER, "policy_id": POLICY_ID, **changes})


async def test_joining_is_the_act_of_a_did_its_owner_or_an_administrator(
    empty_store: LedgerStore, reader: LedgerReader
) -> None:
    await empty_store.commit([card(), card("did:test:mine", owner_did=OWNER)], AT)
    await empty_store.commit([subnet(PAYER, AGENT, "did:test:mine")], AT)
    (row,) = await subnet_rows(reader, PAYER, subnet_id=ID)
    assert row["joined_dids"] == sorted([OWNER, "did:test:mine"])
    steps: list[tuple[Any, ErrorCode | None]] = [
        (added(OTHER, actor_did=OTHER), ErrorCode.NOT_FOUND),
        (added(AGENT, actor_did=AGENT), None),
        (added(AGENT, actor_did=OTHER), ErrorCode.NOT_FOUND),
        (added(OTHER, actor_did=PAYER), ErrorCode.FORBIDDEN),
        (removed(OWNER, actor_did=PAYER), ErrorCode.FORBIDDEN),
        (added(PAYER), None),
        (added(OTHER, actor_did="did:test:admin", is_admin=True), None),
        (policy(), None),
        (policy("0197d000-0000-7000-8000-00000000b003", actor_did=AGENT), ErrorCode.FORBIDDEN),
    ]
    outcomes = [(await empty_store.commit([command], AT))[0] for command, _ in steps]
    assert [one.error for one in outcomes] == [error for _, error in steps]
    (row,) = await subnet_rows(reader, PAYER, subnet_id=ID)
    assert row["joined_dids"] == sorted([OWNER, "did:test:mine", AGENT, OTHER])
    assert row["member_dids"] == sorted([*row["joined_dids"], PAYER])
    assert not await has_joined(reader, ID, PAYER)
    assert await binding_policies(reader, PAYER) == []
    assert [one.capability for one in await binding_policies(reader, AGENT)] == ["cap.x"]
    # Its owner takes an agent out; nothing binds it then.
    for command in (removed(AGENT, actor_did=PAYER), removed(AGENT, actor_did=OWNER)):
        (outcome,) = await empty_store.commit([command], AT)
    assert outcome.error is ErrorCode.NOT_FOUND
    assert await binding_policies(reader, AGENT) == []


async def test_owners_read_a_subnet_whole_after_each_change(
    empty_store: LedgerStore, database: Database
) -> None:
    reads = PreparedReads(database.service_url, timeout_s=60)
    seen = 0
    for command, joined, policies in (
        (subnet(PAYER), [OWNER], 0),
        (policy(), [OWNER], 1),
        (added(PAYER, actor_did=PAYER), [OWNER, PAYER], 1),
        (lifted(), [OWNER, PAYER], 0),
        (policy("0197d000-0000-7000-8000-00000000b003"), [OWNER, PAYER], 1),
        (ended(), [], 0),
    ):
        (outcome,) = await empty_store.commit([command], AT)
        assert outcome.status is OutcomeStatus.APPLIED
        ((row,),) = [rows async for rows in SUBNETS.pages(reads, {"subnets": seen})]
        assert (sorted(row["joined_dids"]), len(row["policies"])) == (joined, policies)
        seen = row["changed_id"]
    assert [rows async for rows in SUBNETS.pages(reads, {"subnets": seen})] == []
    assert [len(rows) async for rows in SUBNETS.pages(reads)] == [1]
    await reads.close()


async def test_audit_entries_count_members_and_do_not_list_them(
    empty_store: LedgerStore, auditor: Auditor
) -> None:
    await empty_store.commit([subnet(PAYER, OTHER)], AT)
    await empty_store.commit([policy()], AT)
    await empty_store.commit([ended()], AT)
    rows = auditor.connection.execute("SELECT payload FROM event WHERE event_type LIKE 'subnet.%'")
    created, _, removed_one = (row[0] for row in rows)
    assert (created["members"], created["joined"]) == (3, 1)
    assert (removed_one["members"], removed_one["policies"]) == (3, 1)
    assert PAYER not in str(created)


async def test_a_minute_has_as_many_nodes_as_each_rate_policy_allows(
    store: LedgerStore, auditor: Auditor
) -> None:
    minute = AT - AT % 60_000 + 60_000

    async def publish(at_ms: int, *rates: NodeRate) -> ErrorCode | None:
        command = replace(Flow().publish(has_hold=False), rates=rates)
        (outcome,) = await store.commit([command], at_ms)
        if outcome.error is ErrorCode.RATE_LIMITED:
            left_ms = 60_000 - at_ms % 60_000
            assert outcome.result == {"retryAfterS": left_ms // 1_000 + 1}
        return outcome.error

    limited = ErrorCode.RATE_LIMITED
    assert await publish(minute, NodeRate("a", 5, 6)) is limited
    assert await publish(minute, NodeRate("a", 5, 3)) is None
    # One that another policy refuses counts for none.
    assert await publish(minute, NodeRate("a", 5, 2), NodeRate("b", 0, 1)) is limited
    assert await publish(minute + 59_999, NodeRate("a", 5, 2)) is None
    assert await publish(minute + 59_999, NodeRate("a", 5, 1)) is limited
    assert await publish(minute + 59_999, NodeRate("c", 5, 1)) is None
    assert await publish(minute + 60_000, NodeRate("a", 5, 5)) is None
    assert auditor.one("SELECT count(*) FROM workflow") == 4
    # What the payer's quota refuses is not counted.
    later = minute + 120_000
    await store.commit([quota(per_day=5)], later)
    assert await publish(later, NodeRate("a", 5, 2)) is None
    assert await publish(later, NodeRate("a", 5, 3)) is ErrorCode.QUOTA_EXCEEDED
    await store.commit([quota()], later)
    assert await publish(later, NodeRate("a", 5, 3)) is None
