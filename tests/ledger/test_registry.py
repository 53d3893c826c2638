"""Owners and their epochs, agent cards, API keys: who may change what, and who is fenced off."""

from __future__ import annotations

import pytest

from core.errors import ErrorCode
from ledger.commands import OutcomeStatus
from ledger.keys.key_commands import RevokeKey
from ledger.owners.owner_commands import ClaimWorkflows, RegisterOwner
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    OWNER,
    PAYER,
    Flow,
    api_key,
    card,
    commit_all,
    deposit,
    new_id,
    open_store,
    open_with_owner,
)

pytestmark = pytest.mark.anyio


async def test_command_of_an_older_epoch_leaves_no_trace(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_owner(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish()], AT)
    (again,) = await store.commit([RegisterOwner(key="owner", owner=OWNER, address="b")], AT)
    assert again.result == {"epoch": epoch + 1}
    before = auditor.one("SELECT audit_seq FROM head")
    outcomes = await store.commit([flow.pay(CREDIT), Flow(epoch).publish()], AT)
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.STALE}
    assert auditor.one("SELECT audit_seq FROM head") == before
    flow.epoch += 1
    (repeated,) = await store.commit([Flow(epoch, id=flow.id).publish()], AT)
    assert repeated.status is OutcomeStatus.STALE, "its successor's outcome is not its own"
    (paid,) = await store.commit([flow.pay(CREDIT)], AT)
    assert paid.status is OutcomeStatus.APPLIED
    await store.close()


async def test_claim_beside_other_commands_is_a_mistake(database: Database) -> None:
    """It counts rows that the others of its batch may change: the group commit sets it apart."""
    store, epoch = await open_with_owner(database.service_url)
    claim = ClaimWorkflows(
        key="claim", from_owner="x", from_epoch=1, to_owner=OWNER, to_epoch=epoch
    )
    with pytest.raises(AssertionError, match="a lone command is in a batch"):
        await store.commit([Flow(epoch).publish(), claim], AT)
    await store.close()


async def test_claim_moves_unfinished_workflows_once_and_fences_their_owner_off(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_owner(database.service_url)
    running, ended, late = Flow(epoch), Flow(epoch), Flow(epoch)
    await store.commit([running.publish(), ended.publish(), ended.end()], AT)
    claim = ClaimWorkflows(
        key="claim", from_owner=OWNER, from_epoch=epoch, to_owner="owner-2", to_epoch=1
    )
    again = ClaimWorkflows(
        key="claim 2", from_owner=OWNER, from_epoch=epoch, to_owner="owner-2", to_epoch=1
    )
    outcomes = await commit_all(
        store,
        [
            late.publish(),
            RegisterOwner(key="o2", owner="owner-2", address=""),
            claim,
            running.pay(CREDIT),
            again,
        ],
        AT,
    )
    assert outcomes[2].result == {"claimed": 2}, "counted after the publish before it"
    assert outcomes[3].status is OutcomeStatus.STALE
    assert outcomes[4].error is ErrorCode.CONFLICT
    owners = auditor.connection.execute("SELECT owner, status FROM workflow ORDER BY 1, 2")
    assert owners.fetchall() == [
        (OWNER, "success"),
        ("owner-2", "running"),
        ("owner-2", "running"),
    ]
    unknown = ClaimWorkflows(key="c", from_owner="x", from_epoch=1, to_owner="owner-2", to_epoch=9)
    (stale,) = await store.commit([unknown], AT)
    assert stale.status is OutcomeStatus.STALE
    await store.close()


async def test_agent_card_belongs_to_who_registered_it_first(
    database: Database, auditor: Auditor
) -> None:
    store = await open_store(database.service_url)
    first = card(public_key="a2V5", secret_encrypted=b"sealed")
    stranger = card(owner_did="did:test:stranger")
    admin = card(owner_did="did:test:admin", is_admin=True, endpoint="http://127.0.0.1:10")
    signed = card(owner_did="did:test:other", is_signed=True, capability_ids=("x.v1", "y.v1"))
    outcomes = await store.commit([first, stranger, admin, signed], AT)
    assert outcomes[0].result == {
        "did": AGENT,
        "ownerDid": PAYER,
        "registered": 1,
        "isNew": True,
        "tokenRevision": 1,
    }
    assert outcomes[1].error is ErrorCode.FORBIDDEN
    assert outcomes[3].result == {
        **outcomes[0].result,
        "registered": 2,
        "isNew": False,
    }
    row = auditor.connection.execute(
        "SELECT owner_did, revision, public_key, signing_secret, capability_ids FROM agent"
    ).fetchone()
    assert row == (PAYER, 3, "a2V5", b"sealed", ["x.v1", "y.v1"])
    await store.close()
    store = await open_store(database.service_url)
    (refused,) = await store.commit([card(owner_did="did:test:stranger")], AT)
    assert refused.error is ErrorCode.FORBIDDEN
    await store.close()


@pytest.mark.parametrize("is_in_batch", [False, True])
async def test_a_did_in_use_is_claimed_as_itself_only(
    database: Database, is_in_batch: bool
) -> None:
    """It is an owner's, whose agents and money its name stands for: not a new one."""
    store = await open_store(database.service_url)
    with_key, with_wallet, with_agent = (f"did:test:with-{what}" for what in ("key", "sum", "one"))
    used = [
        api_key("k1", b"1" * 32, owner_did=with_key),
        deposit(CREDIT, owner_did=with_wallet),
        card("did:test:one", owner_did=with_agent),
    ]
    claims = [
        card(did, owner_did=owner)
        for did in (with_key, with_wallet, with_agent)
        for owner in ("did:test:stranger", did)
    ]
    if is_in_batch:
        outcomes = (await store.commit([*used, *claims], AT))[3:]
    else:
        await store.commit(used, AT)
        outcomes = await store.commit(claims, AT)
    assert [outcome.error for outcome in outcomes] == [ErrorCode.FORBIDDEN, None] * 3
    await store.close()


async def test_api_key_is_revoked_once_by_its_owner_or_an_admin(
    database: Database, auditor: Auditor
) -> None:
    store = await open_store(database.service_url)
    await store.commit([api_key("k1", b"1" * 32), api_key("k2", b"2" * 32)], AT)

    def revoke(key_id: str, owner_did: str | None) -> RevokeKey:
        return RevokeKey(key=new_id(), actor_did=PAYER, key_id=key_id, owner_did=owner_did)

    outcomes = await store.commit(
        [
            revoke("k1", "did:test:stranger"),
            revoke("k1", PAYER),
            revoke("k1", PAYER),
            revoke("k2", None),
            revoke("k3", None),
        ],
        AT + 1,
    )
    assert [outcome.error for outcome in outcomes] == [
        ErrorCode.NOT_FOUND,
        None,
        ErrorCode.NOT_FOUND,
        None,
        ErrorCode.NOT_FOUND,
    ]
    assert auditor.one("SELECT count(*) FROM api_key WHERE revoked_ms = %s", AT + 1) == 2
    await store.close()
