"""Agent cards, API keys: who may change what."""

from __future__ import annotations

import pytest

from core.errors import ErrorCode
from ledger.keys.key_commands import RevokeKey
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    api_key,
    card,
    deposit,
    new_id,
    open_store,
)

pytestmark = pytest.mark.anyio


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
