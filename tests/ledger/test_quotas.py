"""Quotas: counted with the hold, by UTC day, exactly, also from a memory that was lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode
from core.market.sharing.quota import DAY_MS, QuotaLimits, day_start_ms
from core.money import MICRO_PER_CENT
from core.workflow.events import WorkflowChanged
from core.workflow.transitions import WorkflowStatus
from ledger.commands import Outcome, OutcomeStatus
from ledger.errors import LedgerIntegrityError
from ledger.quotas.quota_commands import SetQuota
from ledger.workflows.workflow_commands import PublishWorkflow
from ledger.writer.group_commit import GroupCommit
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    GENESIS,
    PAYER,
    Flow,
    deposit,
    hold_all,
    new_key,
    open_store,
    open_with_member,
)

pytestmark = pytest.mark.anyio

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


async def test_a_payer_without_a_quota_is_not_counted(database: Database, auditor: Auditor) -> None:
    store, epoch = await open_with_member(database.service_url)
    await store.commit([Flow(epoch).publish()], AT)
    trips = store.round_trips
    assert store.cache.usage == {}
    assert store.cache.quotas == {PAYER: None}, "asked once"
    await store.commit([Flow(epoch).publish()], AT)
    assert store.round_trips == trips + 1
    await store.close()


async def test_a_refusal_leaves_no_trace_and_its_key_is_free(
    database: Database, auditor: Auditor
) -> None:
    """It passes by itself: who waits as told and repeats the request must not be refused again."""
    store, epoch = await open_with_member(database.service_url)
    await store.commit([quota(at_once=1)], AT)
    first, second = Flow(epoch), Flow(epoch)
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
    await store.close()


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_repeat_of_an_accepted_publish_is_no_refusal(
    database: Database, auditor: Auditor, is_forgotten: bool
) -> None:
    """Its owner may have missed the answer; by now the quota has no room for another."""
    store, epoch = await open_with_member(database.service_url)
    first, other = Flow(epoch), Flow(epoch)
    await store.commit([quota(per_day=1), first.publish()], AT)
    if is_forgotten:
        await store.close()
        store = await open_store(database.service_url)
    (alone,) = await store.commit([first.publish()], AT)
    assert (alone.status, alone.error) == (OutcomeStatus.REPEATED, None)
    refused, again, _ = await store.commit([other.publish(), first.publish(), deposit(1)], AT)
    assert refused.error is ErrorCode.QUOTA_EXCEEDED
    assert (again.status, again.result) == (OutcomeStatus.REPEATED, alone.result)
    assert auditor.balance(PAYER) == 90 * CREDIT + 1
    await store.close()


async def test_case_37_a_workflow_counts_on_the_utc_day_of_its_publish(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    await store.commit([quota(per_day=1)], AT)
    late = Flow(epoch)
    assert (await one(store, published(late, MIDNIGHT - 1))).status is OutcomeStatus.APPLIED
    refused = await one(store, published(Flow(epoch), MIDNIGHT - 1), MIDNIGHT - 1500)
    assert refused.error is ErrorCode.QUOTA_EXCEEDED
    assert refused.result == {"retryAfterS": 2}, "until midnight, rounded up"
    # It runs over midnight and still belongs to the day before.
    assert (await one(store, published(Flow(epoch), MIDNIGHT))).status is OutcomeStatus.APPLIED
    assert (await one(store, published(Flow(epoch), MIDNIGHT))).error is ErrorCode.QUOTA_EXCEEDED
    # One of the day before that arrives late is counted where it belongs.
    refused = await one(store, published(Flow(epoch), MIDNIGHT - 1), MIDNIGHT + 5)
    assert refused.error is ErrorCode.QUOTA_EXCEEDED
    assert refused.result == {"retryAfterS": 1}
    await store.close()


async def test_case_37_what_runs_is_not_reset_at_midnight(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    await store.commit([quota(at_once=1), published(Flow(epoch), MIDNIGHT - 1)], AT)
    assert (await one(store, published(Flow(epoch), MIDNIGHT))).error is ErrorCode.QUOTA_EXCEEDED
    await store.close()


async def test_case_38_the_hold_counts_and_its_rest_is_given_back_to_its_day(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    await store.commit([quota(cents=1000)], AT)
    first = Flow(epoch, hold=6 * CREDIT)
    await store.commit([published(first)], AT)
    assert (await one(store, Flow(epoch, hold=5 * CREDIT).publish())).error is (
        ErrorCode.QUOTA_EXCEEDED
    )
    # 2 of the 6 are spent, 4 return: 8 of the 10 are free. Its end is tomorrow, its day is today.
    await store.commit([first.pay(2 * CREDIT), first.end()], MIDNIGHT + 1)
    whole = Flow(epoch, hold=8 * CREDIT)
    over = Flow(epoch, hold=8 * CREDIT + 1)
    assert (await one(store, over.publish())).error is ErrorCode.QUOTA_EXCEEDED
    assert (await one(store, whole.publish())).status is OutcomeStatus.APPLIED
    tomorrow = published(Flow(epoch, hold=10 * CREDIT), MIDNIGHT)
    assert (await one(store, tomorrow, MIDNIGHT)).status is OutcomeStatus.APPLIED
    await store.close()


async def test_a_new_writer_counts_on_from_the_rows(database: Database, auditor: Auditor) -> None:
    store, epoch = await open_with_member(database.service_url)
    await store.commit([quota(per_day=4, at_once=3, cents=2000)], AT)
    running, ended, failed = Flow(epoch), Flow(epoch), Flow(epoch)
    end = (WorkflowChanged(WorkflowStatus.FAILED, AT),)
    commands = [
        running.publish(),
        ended.publish(),
        failed.publish(records=end, has_hold=False),
    ]
    await store.commit([*commands, ended.pay(3 * CREDIT), ended.end()], AT)
    usage = store.cache.usage[PAYER]
    assert (usage.running, usage.days) == (1, {day_start_ms(AT): (3, 13 * CREDIT)})
    await store.close()
    store = await open_store(database.service_url)
    refused = await one(store, published(Flow(epoch, hold=8 * CREDIT)))
    assert refused.detail == "Daily spend: 1300 of 2000 cents used, 800 wanted"
    assert store.cache.usage[PAYER] == usage, "read as it was counted"
    # Counted through an escrow that was read, not remembered.
    await store.commit([running.end()], AT)
    fits = Flow(epoch, hold=17 * CREDIT)
    assert (await one(store, published(fits))).status is OutcomeStatus.APPLIED
    assert (await one(store, published(Flow(epoch, hold=0)))).error is ErrorCode.QUOTA_EXCEEDED
    await store.close()


async def test_limits_bind_from_the_batch_that_sets_them(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    await store.commit([Flow(epoch).publish()], AT)
    outcomes = await store.commit(
        [quota(per_day=2), *(Flow(epoch).publish() for _ in range(3)), quota()], AT
    )
    assert in_total(outcomes) == {"applied": 3, "QUOTA_EXCEEDED": 2}
    assert (await one(store, Flow(epoch).publish())).status is OutcomeStatus.APPLIED
    row = auditor.connection.execute(
        "SELECT max_workflows_per_day, set_by_did, updated_ms FROM quota WHERE did = %s", (PAYER,)
    )
    assert row.fetchall() == [(None, "did:test:admin", AT)]
    assert auditor.one("SELECT count(*) FROM event WHERE event_type = 'quota.set'") == 2
    await store.close()


async def test_case_38_parallel_publishes_and_payments_never_overshoot(
    database: Database, auditor: Auditor
) -> None:
    """A hundred at once against a quota of 10, a balance for 5, a budget for 3 nodes."""
    stopped: list[LedgerIntegrityError] = []
    ledger = GroupCommit(
        database.service_url, genesis=GENESIS, on_fatal=stopped.append, now_ms=lambda: AT
    )
    await ledger.start()
    epoch = await hold_all(ledger)
    poor = "did:test:poor"
    await ledger.submit([deposit(1000 * CREDIT), deposit(50 * CREDIT, owner_did=poor)])
    await ledger.submit([quota(per_day=10)])

    async def at_once(flows: list[Flow]) -> list[Outcome]:
        parts = await asyncio.gather(*(ledger.submit([flow.publish()]) for flow in flows))
        return [outcome for part in parts for outcome in part]

    outcomes, poor_outcomes = await asyncio.gather(
        at_once([Flow(epoch) for _ in range(100)]),
        at_once([Flow(epoch, payer=poor) for _ in range(100)]),
    )
    assert in_total(outcomes) == {"applied": 10, "QUOTA_EXCEEDED": 90}
    assert in_total(poor_outcomes) == {"applied": 5, "INSUFFICIENT_CREDITS": 95}
    assert auditor.balance(PAYER) == 900 * CREDIT
    assert auditor.balance(poor) == 0

    rich = "did:test:rich"
    budget = Flow(epoch, payer=rich, hold=3 * CREDIT)
    await ledger.submit([deposit(3 * CREDIT, owner_did=rich), budget.publish()])
    paid = await asyncio.gather(
        *(ledger.submit([budget.pay(CREDIT, node=f"n{number}")]) for number in range(100))
    )
    assert in_total([outcome for (outcome,) in paid]) == {
        "applied": 3,
        "INTERNAL_ERROR": 1,
        "CONFLICT": 96,
    }, "the first payment too much quarantines the workflow"
    assert auditor.balance(AGENT) == 3 * CREDIT * 95 // 100
    assert not stopped
    await ledger.stop()


async def test_a_limit_in_cents_is_exact(database: Database, auditor: Auditor) -> None:
    store, epoch = await open_with_member(database.service_url)
    await store.commit([quota(cents=1)], AT)
    fits = Flow(epoch, hold=MICRO_PER_CENT - 1)
    assert (await one(store, fits.publish())).status is OutcomeStatus.APPLIED
    assert (await one(store, Flow(epoch, hold=2).publish())).error is ErrorCode.QUOTA_EXCEEDED
    assert (await one(store, Flow(epoch, hold=1).publish())).status is OutcomeStatus.APPLIED
    await store.close()
