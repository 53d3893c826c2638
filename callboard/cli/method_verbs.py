"""Verbs that call one method of the client and show its reply.

A verb lists its arguments by their names in `_PLACES`, and its options by the names of the client's
parameters, which `_OPTIONS` maps to flags. So an argument or an option has the same name and help
text in all verbs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Annotated, Any, Final

import typer

from callboard.cli.session import Session, verb
from core.wording import kind_of

Row = Mapping[str, Any]


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in the text of an option.

    Raises:
        typer.BadParameter: the text is not a JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"got {kind_of(value)}, expected a JSON object")
    return value


# Arguments: help text, and type if it is not str. An argument that is not listed here is the ID of
# a record; the argument is named after the record.
_PLACES: Final[dict[str, tuple[Any, ...]]] = {
    "address": ("The URL, http or https.",),
    "agent": ("The agent's DID.",),
    "credits": ("Credits, at most 6 decimals.",),
    "cron": ("Cron expression, five fields in quotes.",),
    "capability": ("Id of the capability.",),
    "description": ("Description of the problem.",),
    "did": ("The DID.",),
    "endpoint": ("Base URL of its API.",),
    "heir": ("DID of the new owner.",),
    "kind": ("Kind: social_recovery, custodian_recovery or time_lock_recovery.",),
    "manifest": ("Manifest with a trigger of type webhook or event; - reads standard input.",),
    "name": ("The name.",),
    "new_key": ("New public key, base64.",),
    "node": ("The node's name.",),
    "owner": ("DID of the key's owner.",),
    "public_key": ("Its current public key, base64.",),
    "rating": ("Rating, 0 to 1 or 1 to 5.", float),
    "reason": ("Reason of the slash.",),
    "region": ("Its region.",),
    "resolution": ("Reason of the decision.",),
    "status": (
        "Decision: resolved_complainant, resolved_respondent, resolved_split or dismissed.",
    ),
    "supported": ("Supported versions or ranges.", list[str]),
    "type": ("Type, such as quality or fraud.",),
    "version": ("Version, such as 1.4.0.",),
}
_SCOPES: Final = (
    "Scope; repeatable. RESOURCE:read or RESOURCE:write, with RESOURCE one of"
    " workflows, agents, capabilities, ledger, trust, identity,"
    " schedules, webhooks, audit, federation, keys; or one of"
    " ledger:deposit, prices:write, disputes:resolve, quotas:write,"
    " trust:revoke, federation:admin, audit:all, metrics:read, agents:heartbeat, admin."
    " Default: read and write of all resources."
)
# Options by the client's parameter: flag, help text, and type if it is not str. An option that is
# missing here is a text, whose flag and help text are made from its name.
_OPTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "agent_did": ("--agent", "The agent's DID; default: the caller."),
    "all": ("--all", "Also results that are not signed.", bool),
    "amount_credits": ("--amount", "Credits to collect; default: all free credits."),
    "author": ("--author", "Only agents of this author."),
    "comment": ("--comment", "Comment."),
    "concurrent_workflows": ("--concurrent", "Concurrent workflows.", int),
    "capabilities": ("--capability", "Capability that it may offer; repeatable.", list[str]),
    "capability": ("--capability", "The capability's ID."),
    "catch_up_window_ms": ("--catch-up-ms", "How late a run may start; default: an hour.", int),
    "cursor": ("--cursor", "nextCursor of the previous page."),
    "custodian_did": ("--custodian", "DID that can replace the key alone."),
    "daily_budget_credits": (
        "--daily-budget",
        "Most credits that the runs of a UTC day may hold.",
    ),
    "days": ("--days", "Days without a heartbeat.", int),
    "delay_hours": ("--delay-hours", "Hours of the time lock; default: 72.", int),
    "description": ("--description", "What it is for."),
    "details": ("--details", "Details of the reason."),
    "did": ("--did", "DID of the peer, if it has rotated its key."),
    "enabled": ("--enable/--disable", "Enable or pause the webhook.", bool),
    "estimated_spend_cents": ("--spend", "Estimated cost in cents.", int),
    "eta_ms": ("--eta-ms", "Estimated milliseconds.", int),
    "events": ("--event", "Audit event type, or *; repeatable.", list[str]),
    "event_type": ("--event-type", "Only entries of this event type."),
    "evidence": ("--evidence", "Evidence, a JSON object."),
    "end_time": ("--end", "End of the period (exclusive)."),
    "expires_at": ("--expires-at", "Expiry, an ISO 8601 time; default: never."),
    "guardians": ("--guardian", "A guardian's DID; repeatable.", list[str]),
    "from_id": ("--from", "First entry; default: 1.", int),
    "inputs": ("--input", "Inputs of that node, a JSON object."),
    "input_rate": ("--input-rate", "Credits per input token."),
    "jitter_ms": ("--jitter-ms", "Longest delay after the due times.", int),
    "limit_per_minute": ("--per-minute", "Nodes of each member in a minute.", int),
    "limit": ("--limit", "Maximum number of results.", int),
    "max_runs": ("--max-runs", "Runs after which it ends.", int),
    "member_did": ("--did", "Only subnets that list this DID."),
    "member_dids": ("--member", "DID to list; repeatable.", list[str]),
    "model": ("--model", "Only agents that use this model."),
    "month": ("--month", "Month in UTC, such as 2026-11; default: the current one."),
    "months": ("--months", "Calendar months; default: 12.", int),
    "new_url": ("--new-url", "New URL."),
    "node_id": ("--node", "The node's name; needed if there are several."),
    "offset": ("--offset", "Number of results to skip.", int),
    "output_rate": ("--output-rate", "Credits per output token."),
    "overlap_policy": ("--overlap", "While a run has not ended: skip, queue or allow."),
    "overlap_s": (
        "--overlap",
        "Seconds for which the previous secret stays valid; default: 0.",
        int,
    ),
    "owner_did": ("--for", "DID of the account; default: the caller."),
    "paused": ("--paused", "Do not start it yet.", bool),
    "payer_did": ("--payer", "The payer's DID; default: the caller."),
    "peer_id": ("--id", "ID of the peer here; default: the last part of its DID."),
    "period_end": ("--end", "End of the period (exclusive)."),
    "period_start": ("--start", "Start of the period, ISO 8601."),
    "policy_type": (
        "--type",
        "Of a subnet: private, invite_only or public. Of a policy: allow_capability,"
        " deny_capability, require_approval, rate_limit, allow_region or deny_region.",
    ),
    "preferred": ("--preferred", "Preferred version."),
    "price_cents": ("--cents", "Whole cents per node.", int),
    "quarantined": ("--quarantined", "Only quarantined workflows.", bool),
    "rate_class": ("--rate-class", "Rate limit of the key: standard or unlimited."),
    "reason": (
        "--reason",
        "The reason. Of a revocation: it is public. Of a cancel: default user_request.",
    ),
    "refund_credits": ("--refund", "Credits to refund."),
    "region": ("--region", "Region of the peers, or of the policy."),
    "request_region": ("--region", "Preferred region."),
    "requires_inactivity": (
        "--requires-inactivity",
        "The owner's own requests also restart the timer.",
        bool,
    ),
    "respondent_did": ("--agent", "The agent's DID."),
    "scale": ("--scale", "Highest rating of the scale: 1 or 5.", int),
    "scopes": ("--scope", _SCOPES, list[str]),
    "secret": ("--secret", "whsec_ and base64 of 24 to 64 bytes; default: a new one."),
    "signature": ("--signature", "Signature of cancel:ID by the current key, base64."),
    "signatures": (
        "--signature",
        "DID=SIGNATURE of the recovery message; repeatable.",
        list[str],
    ),
    "spend_per_day_cents": ("--spend-per-day", "Cents per day.", int),
    "stake_credits": ("--stake-offered", "Credits offered as stake."),
    "start_time": ("--start", "Start of the period, ISO 8601."),
    "status": ("--status", "Only results with this status."),
    "subnet_id": ("--subnet", "Only policies of this subnet."),
    "successor": ("--successor", "Version to use instead."),
    "template": ("--template", "Manifest, a JSON file; - reads standard input."),
    "threshold": ("--threshold", "Number of guardians who must sign.", int),
    "timezone": ("--timezone", "IANA time zone; default: UTC."),
    "target_id": ("--target-id", "Only entries about this ID."),
    "workflow_id": ("--workflow", "The workflow's ID."),
    "workflows_per_day": ("--workflows-per-day", "Workflows per day.", int),
}


def calling_verb(
    app: typer.Typer,
    name: str,
    method: str | Callable[..., Any],
    text: str,
    takes: str = "",
    *,
    options: str = "",
    columns: str = "",
    row: Callable[[Any], Row] = dict,
    panel: str | None = None,
    **fixed: Any,
) -> None:
    """Add a verb that calls the client and shows the returned record or page.

    Args:
        app: the app of the verb's noun, or `top`.
        name: the verb.
        method: the name of a client method, or a function whose first argument is the client.
        text: the help text of the verb, one sentence.
        takes: the verb's arguments, names of `_PLACES` in the order of the method's parameters.
        options: the verb's options, names of `_OPTIONS`. The option `limit=50` has the default 50;
            the option `days!` is required. A list also gets the options limit and cursor.
        columns: for a list, the members of its rows that the table shows.
        row: converts a row of a list before the table shows it.
        panel: the section of the help that lists the verb.
        fixed: arguments with which the verb always calls the client's method.
    """
    places = takes.split()
    if columns and "limit" not in options:
        options += " limit=50 cursor"

    def call(session: Session, **given: Any) -> None:
        placed = [given.pop(place) for place in places]
        named = {n: value for n, value in given.items() if value not in (None, [])}
        if isinstance(method, str):
            reply = getattr(session.client, method)(*placed, **named, **fixed)
        else:
            reply = method(session.client, *placed, **named)
        if columns:
            session.show_table(reply, map(row, reply.rows), columns.split())
        else:
            session.show_record(reply)

    call.__doc__ = text
    first = Parameter("session", Parameter.POSITIONAL_OR_KEYWORD)
    own = [*map(_argument, places), *map(_option, options.split())]
    # `verb` reads this signature.
    call.__signature__ = Signature([first, *own])  # type: ignore[attr-defined]
    verb(app, name, panel)(call)


def _argument(place: str) -> Parameter:
    text, *kinds = _PLACES.get(place, (f"The {place}'s ID.",))
    kind = kinds[0] if kinds else str
    highest = 5 if place == "rating" else None
    argument = typer.Argument(help=text, metavar=place.upper(), min=_lowest(kind), max=highest)
    return Parameter(place, Parameter.KEYWORD_ONLY, annotation=Annotated[kind, argument])


def _option(spec: str) -> Parameter:
    name, _, default = spec.removesuffix("!").partition("=")
    own = (f"--{name.replace('_', '-')}", f"The {name.replace('_', ' ')}.")
    flag, text, *kinds = _OPTIONS.get(name, own)
    kind = kinds[0] if kinds else str
    parser = json_object if name in ("evidence", "inputs") else None
    option = typer.Option(flag, help=text, min=_lowest(kind), parser=parser)
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind | None, option],
        default=Parameter.empty if spec.endswith("!") else int(default) if default else None,
    )


def _lowest(kind: Any) -> int | None:
    return 0 if kind in (int, float) else None
