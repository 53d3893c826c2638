"""Commands about triggers: they are created, changed and ended, and refused runs are noted.

A run itself is `PublishWorkflow` with a `TriggerRun`. Plain values, as `ledger/commands.py` says.
Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

from typing import Any, Final, Literal

from core.message import Message
from core.records.statuses import TriggerKind
from ledger.authority import AuthorizedCommand, Credential, OwnersCommand
from ledger.commands import Command

RUN_KEY: Final = "run:"


def run_command_key(trigger_id: str, key: str) -> str:
    """Return the key of the command that takes one cause of a run, by the key of the cause."""
    return f"{RUN_KEY}{trigger_id}:{key}"


class TriggerRun(Message, frozen=True, kw_only=True):
    """One cause of a run, and the state of the trigger that it was decided from.

    `key`: identifies the cause: due time, delivery id, idempotency key or audit entry id.
    `version`, `credential`: as the trigger's row has them. `due_ms`: the due time that is taken,
    None for a run that takes none; `next_due_ms`: the due time after it; None: there is none.
    `depth`: how many runs of event triggers led to this one.
    """

    trigger_id: str
    key: str
    version: int
    credential: Credential = None
    due_ms: int | None = None
    next_due_ms: int | None = None
    depth: int = 0


class TriggerTerms(Message, frozen=True, kw_only=True):
    """What configures a trigger.

    `config`: the configuration of its kind. `manifest_json`: the template; None: unchanged.
    `is_enabled`: whether it is active. `due_ms`: the first due time of a schedule. `expires_ms`:
    when the credential of the command ends, None for never.
    """

    name: str
    config: dict[str, Any]
    manifest_json: str | None = None
    max_runs: int | None = None
    daily_budget_micro: int | None = None
    is_enabled: bool = True
    due_ms: int | None = None
    expires_ms: int | None = None


class CreateTrigger(AuthorizedCommand, frozen=True, kw_only=True):
    """Store a trigger; it runs as its creator, by the credential of this command.

    `token_hash`, `secret`, `is_signed`: of a hook, as its row has them. `count`: how many triggers
    its creator has. Rejection: CONFLICT, not stored: too many. Result: {"id"}.
    """

    request_hash: bytes = b""
    trigger_id: str
    kind: TriggerKind
    terms: TriggerTerms
    token_hash: bytes | None = None
    secret: bytes | None = None
    is_signed: bool | None = None
    count: int = 0


class ChangeTrigger(OwnersCommand, frozen=True, kw_only=True):
    """Change a trigger: all its terms become those of the command; its version rises.

    `version`: that the change was made from. `changes`: the members that the caller named.
    `keeps_due`: leave the due time unchanged; refused unless the trigger is active. A paused
    trigger whose terms are enabled is resumed. From then on the trigger runs by the credential of
    this command, unless it is that of an administrator who is not the owner. Rejections: NOT_FOUND;
    CONFLICT: it has ended, or was changed or paused meanwhile; INVALID_REQUEST: `max_runs` are
    started already. Result: {"version"}.
    """

    trigger_id: str
    version: int
    changes: tuple[str, ...]
    terms: TriggerTerms
    keeps_due: bool = False


class EndTrigger(OwnersCommand, frozen=True, kw_only=True):
    """End a trigger; its runs go on. One that has ended stays as it is.

    Rejection: NOT_FOUND. Result: {"endedMs"}.
    """

    trigger_id: str


class NoteRun(Command, frozen=True, kw_only=True):
    """Note that a cause of a run started none: it `failed`, since it was refused, or was `skipped`.

    The key is that of the run. A failure for the `reason` UNAUTHORIZED pauses the trigger at once;
    ten failures in a row pause it, too. `missed_until_ms`: the last of the due times that were
    missed, the first is `run.due_ms`. Rejection: CONFLICT, not stored: the trigger is not active,
    was changed meanwhile, or the due time was taken.
    """

    actor_did: str
    run: TriggerRun
    status: Literal["failed", "skipped"]
    reason: str
    detail: str = ""
    missed_until_ms: int | None = None
