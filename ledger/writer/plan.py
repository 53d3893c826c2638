"""Planning: each command of a batch, in order, becomes rows and an outcome; each sees those before
it.

`ledger/registry.py` says how each command is planned; here is what all have in common: the
fence, refusals, repeats. Planning reads the state cache only: the read set says beforehand what has
to be in it. It never waits and never talks to the database. Reference: money.md (Settlement,
Commands and keys).
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

# Prefixes of command keys for which refusals are not stored.
_GIVEN_BACK: Final = (f"{CALLERS_KEY}:", RUN_KEY)
_QUARANTINED_BY: Final = {ErrorCode.ALREADY_SETTLED: QuarantineCode.ALREADY_SETTLED}


def plan(command: Command, batch: Batch) -> Outcome:
    """Add a command's rows and its one audit entry to the batch and return its outcome."""
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
        # A caller's key is the caller's again after a refusal; a refused run's key is for its note.
        if not refusal.is_stored or command.key.startswith(_GIVEN_BACK):
            batch.untraced.add(command.key)
            if refusal.is_audited:
                batch.record_refusal(command.key, refusal)
            return Outcome(OutcomeStatus.REJECTED, refusal.result, refusal.code, refusal.detail)
        return batch.refused(command, refusal)


def is_stale(command: Any, cache: StateCache) -> bool:
    """Say whether a command of a workflow comes from a member that does not hold its shard.

    The fence, as far as it is this writer's; the head's epoch, in the statement, is the rest of it.
    """
    if not kind_of(command).is_fenced:
        return False
    held = cache.shards[shard_of(command.workflow_id)]
    is_held = held.epoch == command.shard_epoch and held.member == command.member
    # A shard that is free has an empty member, which is nobody's name.
    return not (is_held and held.member)


def repeated(command: Command, request_hash: bytes | None, first: Outcome) -> Outcome:
    """Return what a repeated key answers: the first outcome, or KEY_REUSED for another request."""
    if request_hash_of(command) != request_hash:
        return Outcome(
            OutcomeStatus.REJECTED,
            {},
            ErrorCode.KEY_REUSED,
            "the key was used before for a different request",
        )
    return Outcome(OutcomeStatus.REPEATED, first.result, first.error, first.detail)
