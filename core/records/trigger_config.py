"""The configuration of a trigger, by its type: the member `trigger.config` of a manifest.

The configuration is checked once, at the HTTP edge. In the manifest of a run, the service replaces
the configuration by the template's id and version, the cause and the depth of the run, and the
value of `$.trigger.result`.
Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from core.errors import Problem, ServiceError
from core.money import micro_from_credits
from core.records.agent import Whole
from core.records.api.shape import unknown_member
from core.records.audit import AuditEventType
from core.records.bounds import PLAIN_TEXT_PATTERN, WEBHOOK_SECRET, is_webhook_secret
from core.records.model_problems import problem_of
from core.triggers.cron import EXPRESSION_CHARS_MAX, parse_cron
from core.triggers.due import CATCH_UP_MS_DEFAULT
from core.triggers.event_match import checked_filter
from core.wording import did_you_mean

RUNS_MAX: Final = 1_000_000
RUNS_PER_MINUTE_MAX: Final = 600
RUNS_PER_MINUTE_DEFAULT: Final = 60
CATCH_UP_MS_MAX: Final = 30 * 24 * 3_600_000
JITTER_MS_MAX: Final = 3_600_000
TRIGGER_NAME_CHARS_MAX: Final = 100
# Events of triggers must not start a trigger, because a trigger could then start itself.
STARTING_EVENTS: Final = tuple(
    event.value for event in AuditEventType if not event.value.startswith("trigger.")
)


def _positive_credits(value: object) -> int:
    micro = micro_from_credits(value)
    if micro <= 0:
        raise ValueError("expected credits > 0")
    return micro


def _secret(value: str) -> str:
    if not is_webhook_secret(value):
        raise ValueError(f"expected {WEBHOOK_SECRET}")
    return value


def _starting_event(value: str) -> str:
    if value not in STARTING_EVENTS:
        hint = did_you_mean(value, STARTING_EVENTS)
        raise ValueError(f"expected the type of an audit event, but not of a trigger{hint}")
    return value


class TriggerConfig(BaseModel):
    """The members that all types of triggers have. Unknown members are refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, strict=True, extra="forbid", frozen=True, defer_build=False
    )

    name: (
        Annotated[
            str,
            StringConstraints(
                pattern=PLAIN_TEXT_PATTERN, min_length=1, max_length=TRIGGER_NAME_CHARS_MAX
            ),
        ]
        | None
    ) = Field(default=None, description="Name of the trigger. Default: the intent, or the type.")
    max_runs: Annotated[Whole, Field(ge=1, le=RUNS_MAX)] | None = Field(
        default=None, description="Runs after which the trigger ends. Default: no maximum."
    )
    daily_budget_micro: (
        Annotated[
            int,
            BeforeValidator(_positive_credits),
            WithJsonSchema({"type": ["number", "string"]}),
        ]
        | None
    ) = Field(
        default=None,
        alias="dailyBudgetCredits",
        description="Most that the runs of one UTC day may hold, in credits. Default: no maximum.",
    )
    enabled: bool = Field(default=True, description="Whether it starts runs. Default: true.")


class ScheduledConfig(TriggerConfig):
    """The configuration of a schedule."""

    cron_expression: Annotated[str, StringConstraints(max_length=EXPRESSION_CHARS_MAX)] = Field(
        description="When runs are due: five fields as in cron."
    )
    timezone: str = Field(default="UTC", description="IANA time zone. Default: UTC.")
    overlap_policy: Literal["skip", "queue", "allow"] = Field(
        default="skip",
        description="What happens to a due time while a run has not ended. Default: skip.",
    )
    catch_up_window_ms: Annotated[Whole, Field(ge=0, le=CATCH_UP_MS_MAX)] = Field(
        default=CATCH_UP_MS_DEFAULT,
        description="How late a run may start, in milliseconds. Default: 3,600,000.",
    )
    jitter_ms: Annotated[Whole, Field(ge=0, le=JITTER_MS_MAX)] = Field(
        default=0,
        description="Longest delay of the runs after their due times, in milliseconds. Each"
        " schedule has a delay of its own. Default: 0.",
    )


class HookConfig(TriggerConfig):
    """The configuration of a hook."""

    secret: Annotated[str, AfterValidator(_secret)] | None = Field(
        default=None,
        description="Secret of the Standard Webhooks signature that each call needs, `whsec_…`."
        " Default: none, calls need no signature.",
    )
    max_runs_per_minute: Annotated[Whole, Field(ge=1, le=RUNS_PER_MINUTE_MAX)] = Field(
        default=RUNS_PER_MINUTE_DEFAULT, description="Most runs in a minute. Default: 60."
    )


class EventConfig(TriggerConfig):
    """The configuration of an event trigger."""

    event_type: Annotated[
        str,
        AfterValidator(_starting_event),
        WithJsonSchema({"type": "string", "enum": list(STARTING_EVENTS)}),
    ] = Field(description="Type of the audit event that starts a run.")
    filter: Annotated[dict[str, Any], AfterValidator(checked_filter)] = Field(
        default_factory=dict,
        description="Members of the event's payload, by dotted path, and the value or values that"
        " they must equal. Default: none, each event of the type.",
    )
    max_runs_per_minute: Annotated[Whole, Field(ge=1, le=RUNS_PER_MINUTE_MAX)] = Field(
        default=RUNS_PER_MINUTE_DEFAULT, description="Most runs in a minute. Default: 60."
    )


CONFIGS: Final[dict[str, type[TriggerConfig]]] = {
    "scheduled": ScheduledConfig,
    "webhook": HookConfig,
    "event": EventConfig,
}


def read_config(
    trigger_type: str, config: dict[str, Any] | None, path: str = "trigger.config."
) -> TriggerConfig | list[Problem]:
    """Return the configuration of a trigger that is not manual, or its problems.

    Args:
        trigger_type: a key of `CONFIGS`.
        config: the configuration that the client sent; null means absent.
        path: the prefix of the paths of problems.
    """
    model = CONFIGS[trigger_type]
    given = {name: value for name, value in (config or {}).items() if value is not None}
    try:
        read = model.model_validate(given)
        if isinstance(read, ScheduledConfig):
            parse_cron(read.cron_expression, read.timezone)
    except ValidationError as error:
        known = [field.alias or name for name, field in model.model_fields.items()]
        return [_problem(path, found, known) for found in error.errors(include_url=False)]
    except ServiceError as error:
        return [Problem(f"{path}{one.path}", one.got, one.expected) for one in error.problems]
    return read


def _problem(path: str, found: Any, known: list[str]) -> Problem:
    name = str(found["loc"][0])
    if found["type"] == "extra_forbidden":
        return unknown_member(f"{path}{name}", name, known)
    problem = problem_of(f"{path}{name}", found)
    # A message must not contain a secret, even an invalid one.
    return Problem(problem.path, "a value", problem.expected) if name == "secret" else problem
