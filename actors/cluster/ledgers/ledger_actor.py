"""The ledger's actor: the writer of the audited tables, or its standby.

The actor only receives batches; `ledger/writer/group_commit.py` decides and commits. If the writer
finds that its plan contradicts the stored rows (an integrity error), the process ends at once and
Ray starts a new process. Every ledger process waits for the writer's advisory lock
(`ledger/features/head_row.py`). A ledger process is a standby until it gets the lock.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import ray

from actors.process.metrics import start_loop_watchdog
from actors.process.startup import collect_rarely, configure_logging, parse_settings_argument
from actors.transport.actor_calls import serve_batches
from actors.transport.ledger_client import (
    RETRY_DELAY_S_MAX,
    RETRY_DELAY_S_MIN,
    ledger_unavailable_error,
)
from actors.transport.names import LIVENESS
from actors.transport.wire import answer_commands, answer_renewals
from core.metric_families import Key, Report
from core.settings import Settings
from core.trust.deployment_keys import NONCE_BYTES
from core.trust.signing_keys import SEED_BYTES, next_signing_key
from ledger.errors import LedgerIntegrityError, LedgerUnavailable
from ledger.writer.group_commit import CommitStatistics, GroupCommit
from ledger.writer.store import Genesis

log = logging.getLogger("callboard.ledger")


@ray.remote(concurrency_groups=LIVENESS)  # type: ignore[call-overload]
class LedgerActor:
    """Commits batches of commands for every process of the cluster."""

    async def __init__(self, values: Mapping[str, object]) -> None:  # type: ignore[misc]
        settings = parse_settings_argument(values)
        configure_logging(settings, "ledger")
        collect_rarely()
        context = ray.get_runtime_context()
        self._name, self._machine = str(context.get_actor_name()), context.get_node_id()
        self._report_id = os.urandom(8).hex()
        self._watchdog = start_loop_watchdog(self._name, "ledger")
        self._commits = GroupCommit(
            settings.database_url,
            genesis=_genesis(settings),
            on_fatal=_stop,
        )
        self._serve = partial(serve_batches, settings, self._name)
        # Not awaited: if Postgres is down, the creation of the actor must not fail permanently.
        self._start = asyncio.create_task(self._open())

    async def _open(self) -> None:
        await self._serve({"submit": self.submit, "renew": self.renew})
        delay_s = RETRY_DELAY_S_MIN
        while True:
            try:
                await self._commits.start(self._name)
            except LedgerUnavailable as error:
                log.warning("ledger cannot be opened reason=%s", error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_DELAY_S_MAX)
            except Exception as error:
                # The edge of the process. It must end here: LedgerWatch does not replace an actor
                # that answers pings, even if it never opens the ledger.
                log.exception("ledger not opened")
                _stop(LedgerIntegrityError(f"opening: {error!r}"))
            else:
                log.info("ledger opened %s", self._commits.statistics())
                return

    async def submit(self, bodies: list[bytes]) -> list[bytes]:
        """Commit commands in their order; raise LEDGER_UNAVAILABLE when the outcome is unknown."""
        if not self._start.done():
            if self._commits.is_standby:
                raise ledger_unavailable_error()
            await asyncio.shield(self._start)
        commit = partial(self._commits.submit, encoded_bytes=sum(map(len, bodies)))
        return await answer_commands(commit, bodies)

    async def renew(self, bodies: list[bytes]) -> list[bytes]:
        """Renew leases of members; raise LEDGER_UNAVAILABLE while Postgres does not answer."""
        return answer_renewals(self._commits.renew, bodies)

    async def ping(self) -> dict[str, Any]:
        """Return the counters, the progress, the machine, and whether this actor has the lock."""
        commits = self._commits.statistics()
        return {
            "progress": self._watchdog.turns,
            "commits": commits,
            "report": self._report(commits),
            "machine": self._machine,
            "isWriter": commits.is_open,
            "isStandby": self._commits.is_standby,
        }

    def _report(self, commits: CommitStatistics) -> Report:
        counters = dict(self._commits.step_counts.counters)
        counters["callboard_ledger_commit_seconds",] = commits.commit_ms_total / 1_000
        for name in ("batches", "commands", "refused", "reopened"):
            counters[f"callboard_ledger_{name}",] = getattr(commits, name)
        gauges: dict[Key, float] = {
            ("callboard_processes", "ledger"): 1,
            ("callboard_ledger_queued_commands",): commits.queued,
            ("callboard_ledger_lag_seconds",): commits.lag_ms / 1_000,
            ("callboard_ledger_epoch",): commits.epoch,
        }
        return Report(self._report_id, counters, gauges)

    async def hand_over(self) -> None:
        """Finish the current batch and release the lock, so that a standby becomes the writer."""
        await self._commits.hand_over()

    @ray.method(concurrency_group="liveness")
    async def progress(self) -> int:
        """Return the progress counter of this process; a separate thread answers."""
        return self._watchdog.turns

    async def process_id(self) -> int:
        """Return this process's id, for tests and operators."""
        return os.getpid()


def _stop(error: LedgerIntegrityError) -> None:
    """End this process without cleaning up, because its memory cannot be trusted."""
    log.critical("ledger stops reason=%s", error)
    logging.shutdown()
    os._exit(1)


def _genesis(settings: Settings) -> Genesis:
    """Return the content and the signing key of the first entry, used if there is no entry yet."""
    key = next_signing_key(settings.signing_key, (), os.urandom(SEED_BYTES))
    sealed = key.seal(settings.deployment_keys, os.urandom(NONCE_BYTES))
    return Genesis(f"callboard/{settings.region}", settings.fee_bps, key.public_key, sealed)
