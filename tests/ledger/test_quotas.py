"""Quotas: counted with the hold, by UTC day, exactly, also from a memory that was lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode
from core.market.sharing.quota import DAY_MS, QuotaLimits, day_start_ms
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.quotas import SetQuota
from ledger.features.workflow_commands import PublishWorkflow
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AT,
    CREDIT,
    PAYER,
    Flow,
    NextWriter,
    deposit,
    new_key,
)

MIDNIGHT = day_start_ms(AT) + DAY_MS


def quota(
    per_day: int | None = None, at_once: int | None = None, cents: int | None = None
) -> SetQuota:
    """Limit the payer."""
    return SetQuota(
        key=new_key(),
        actor_did="did:test:admin",
        did=PAYER,
        changes=asdict(QuotaLimits(per_day, at_once, cents)),
    )


def published(flow: Flow, at_ms: int = AT) -> PublishWorkflow:
    """Publish a workflow at a certain time."""
    return replace(flow.publish(), created_ms=at_ms)


async def one(store: LedgerStore, command: PublishWorkflow, at_ms: int = AT) -> Outcome:
    """Commit one command."""
    return (await store.commit([command], at_ms))[0]


def in_total(outcomes: list[Outcome]) -> dict[str, int]:
    """Return how many were applied, and how many refused by which code."""
    return dict(Counter(str(outcome.error or outcome.status) for outcome in outcomes))


async def test_a_payer_without_a_quota_is_not_counted(store: LedgerStore) -> None:
    await store.commit([Flow().publish()], AT)
    trips = store.round_trips
    assert store.cache.usage == {}
    assert store.cache.quotas == {PAYER: None}, "asked once"
    await store.commit([Flow().publish()], AT)
    assert store.round_trips == trips + 1


async def test_a_refusal_leaves_no_trace_and_its_key_is_free(
    store: LedgerStore, auditor: Auditor
) -> None:
    """It passes by itself: who waits as told and repeats the request must not be refused again."""
    await store.commit([quota(at_once=1)], AT)
    first, second = Flow(), Flow()
    assert (await one(store, first.publish())).status is OutcomeStatus.APPLIED
    before = auditor.one("SELECT audit_seq FROM head")
    refused, again = await store.commit([second.publish(), second.publish()], AT)
    assert refused.error is again.error is ErrorCode.QUOTA_EXCEEDED
    assert refused.result == again.result == {"retryAfterS": 1}
    assert refused.detail == "Concurrent workflows: 1 of 1 are running"
    assert auditor.one("SELECT audit_seq FROM head") == before
    assert auditor.balance(PAYER) == 90 * CREDIT
    # In one batch: the end counts for what is planned after it.
    _, fits = await store.commit([first.end(), second.publish()], AT)
    assert fits.status is OutcomeStatus.APPLIED


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_repeat_of_an_accepted_publish_is_no_refusal(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor, is_forgotten: bool
) -> None:
    """Its owner may have missed the answer; by now the quota has no room for another."""
    first, other = Flow(), Flow()
    await store.commit([quota(per_day=1), first.publish()], AT)
    if is_forgotten:
        store = await next_writer()
    (alone,) = await store.commit([first.publish()], AT)
    assert (alone.status, alone.error) == (OutcomeStatus.REPEATED, None)
    refused, again, _ = await store.commit([other.publish(), first.publish(), deposit(1)], AT)
    assert refused.error is ErrorCode.QUOTA_EXCEEDED
    assert (again.status, again.result) == (OutcomeStatus.REPEATED, alone.result)
    assert auditor.balance(PAYER) == 90 * CREDIT + 1


async def test_case_37_a_workflow_counts_on_the_utc_day_of_its_publish(store: LedgerStore) -> None:
    await store.commit([quota(per_day=1)], AT)
    late = Flow()
    assert (await one(store, published(late, MIDNIGHT - 1))).status is OutcomeStatus.APPLIED
    refused = await one(store, published(Flow(), MIDNIGHT - 1), MIDNIGHT - 1500)
    assert refused.error is ErrorCode.QUOTA_EXCEEDED
    assert refused.result == {"retryAfterS": 2}, "until midnight, rounded up"
    # It runs over midnight and still belongs to the day before.
    assert (await one(store, published(Flow(), MIDNIGHT))).status is OutcomeStatus.APPLIED
    assert (await one(store, published(Flow(), MIDNIGHT))).error is ErrorCode.QUOTA_EXCEEDED
    # One of the day before that arrives late is counted where it belongs.
    refused = await one(store, published(Flow(), MIDNIGHT - 1), MIDNIGHT + 5)
    assert refused.error is ErrorCode.QUOTA_EXCEEDED
    assert refused.result == {"retryAfterS": 1}


async def test_limits_bind_from_the_batch_that_sets_them(
    store: LedgerStore, auditor: Auditor
) -> None:
    await store.commit([Flow().publish()], AT)
    outcomes = await store.commit(
        [quota(per_day=2), *(Flow().publish() for _ in range(3)), quota()], AT
    )
    assert in_total(outcomes) == {"applied": 3, "QUOTA_EXCEEDED": 2}
    assert (await one(store, Flow().publish())).status is OutcomeStatus.APPLIED
    row = auditor.connection.execute(
        "SELECT max_workflows_per_day, set_by_did, updated_ms FROM quota WHERE did = %s", (PAYER,)
    )
    assert row.fetchall() == [(None, "did:test:admin", AT)]
    assert auditor.one("SELECT count(*) FROM event WHERE event_type = 'quota.set'") == 2
