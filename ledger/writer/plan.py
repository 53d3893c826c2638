"""Plans the commands of a batch in order: turns each command into rows and an outcome.

A command sees the changes of the commands before it. `ledger/registry.py` finds the plan of each
command. This file does the work that all commands share: the fence, refusals and repeats. Planning
reads only the state cache; the rows of the read set are loaded into it before. It never waits and
never uses the database. Reference: money.md (Settlement, Commands and keys).
"""

from __future__ import annotations

from typing import Any, Final

from core.errors import ErrorCode, QuarantineCode
from core.ids import CALLERS_KEY
from core.shards.shard import shard_of
from ledger.authority import AuthorizedCommand, PermittedCommand
from ledger.commands import Command, Outcome, OutcomeStatus, request_hash_of
from ledger.features.credentials import check_credential
from ledger.features.quarantine import FORESEEN, quarantined
from ledger.features.workflow_commands import RUN_KEY, AdvanceWorkflow
from ledger.registry import kind_of
from ledger.writer.batch import Batch, Refusal
from ledger.writer.state_cache import StateCache

# Prefixes of command keys under which refusals are not stored.
_GIVEN_BACK: Final = (f"{CALLERS_KEY}:", RUN_KEY)
_QUARANTINED_BY: Final = {ErrorCode.ALREADY_SETTLED: QuarantineCode.ALREADY_SETTLED}


def plan(command: Command, batch: Batch) -> Outcome:
    """Add a command's rows and its audit entry to the batch; return the outcome."""
    batch.actor_did = getattr(command, "actor_did", "")
    outcome = _decide(command, batch)
    batch.end_command(command.authority if isinstance(command, PermittedCommand) else None)
    return outcome


def _decide(command: Command, batch: Batch) -> Outcome:
    if is_stale(command, batch.cache):
        return Outcome(OutcomeStatus.STALE)
    assert command.key, command
    kind = kind_of(command)
    try:
        if kind.outlives_credential and isinstance(command, AuthorizedCommand):
            check_credential(command.credential, batch)
        return batch.applied(command, kind.plan(command, batch))
    except Refusal as refusal:
        if isinstance(command, AdvanceWorkflow) and refusal.code not in FORESEEN:
            code = _QUARANTINED_BY.get(refusal.code, QuarantineCode.STEP_REFUSED)
            return quarantined(command, code, refusal.code, refusal.detail, batch)
        # After a refusal the caller may use its key again. The command that notes why a run did not
        # start uses the key of the refused run.
        if not refusal.is_stored or command.key.startswith(_GIVEN_BACK):
            batch.untraced.add(command.key)
            if refusal.is_audited:
                batch.record_refusal(command.key, refusal)
            return Outcome(OutcomeStatus.REJECTED, refusal.result, refusal.code, refusal.detail)
        return batch.refused(command, refusal)


def is_stale(command: Any, cache: StateCache) -> bool:
    """Say whether a workflow's command comes from a member that does not hold the workflow's shard.

    This is the writer's part of the fence. The commit function checks the writer's own epoch.
    """
    if not kind_of(command).is_fenced:
        return False
    held = cache.shards[shard_of(command.workflow_id)]
    is_held = held.epoch == command.shard_epoch and held.member == command.member
    # A shard without a holder has the empty string as its member.
    return not (is_held and held.member)


def repeated(command: Command, request_hash: bytes | None, first: Outcome) -> Outcome:
    """Return the reply to a repeated key: the first outcome, or KEY_REUSED if the request
    differs."""
    if request_hash_of(command) != request_hash:
        return Outcome(
            OutcomeStatus.REJECTED,
            {},
            ErrorCode.KEY_REUSED,
            "the key was used before for a different request",
        )
    return Outcome(OutcomeStatus.REPEATED, first.result, first.error, first.detail)
