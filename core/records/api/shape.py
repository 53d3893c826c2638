"""Makes JSON Schemas and parsers from the annotations of classes.

Theory of operation: a class declares the members of a JSON object with annotations, under Python
names. A member of type `T` is required; `Maybe[T]` may be absent; `T | None` may be null;
`MaybeNull[T]` may be absent or null. `Annotated[T, …]` may contain a `Kind`, which bounds and
parses the value; a text, which describes it; `Named`, the JSON name if it is not the camel case of
the Python name; and `Also`, a second accepted JSON name.
Requests are parsed into subclasses of `Body`. `core/records/api/record.py` reads replies lazily, by
the same annotations. This file does not know HTTP. A parser reports all problems at once, at most
`PROBLEMS_MAX`. Decision requests-json-and-client.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, dataclass_transform

from core.errors import PROBLEMS_MAX, ErrorCode, Problem, ProblemList, ServiceError
from core.json_bounds import as_whole
from core.records.bounds import BULK_ITEMS_MAX
from core.wording import GOT_CHARS_MAX, did_you_mean, got_of

T = TypeVar("T")
Json = dict[str, Any]
Schema = dict[str, Any]

REFERENCE: Final = "#/components/schemas/"
# The most items of a list that are parsed, because each item could add a problem. No list of a
# request may have more items.
_ITEMS_MAX: Final = 1_000


class Mismatch(ValueError):
    """A value does not fit its kind. `got` and `expected` describe the value and the kind."""

    def __init__(self, got: str, expected: str) -> None:
        super().__init__(got, expected)
        self.got = got
        self.expected = expected


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A bounded type of values.

    `schema`: the JSON Schema of the type. `read`: returns the parsed value, or raises `Mismatch`.
    """

    schema: Mapping[str, Any]
    read: Callable[[Any], Any] = _as_it_is


def checked(schema: Schema, is_good: Callable[[Any], bool], expected: str) -> Kind:
    """Return the kind of values that a predicate accepts.

    Args:
        schema: the JSON Schema of these values.
        is_good: the predicate.
        expected: the description of these values, for the problem of a value that is refused.
    """

    def take(value: Any) -> Any:
        if not is_good(value):
            raise Mismatch(got_of(value), expected)
        return value

    return Kind(schema, take)


def words(known: Iterable[Any]) -> Kind:
    """Return the kind of texts or numbers from a closed list."""
    listed = [str(one) if isinstance(one, str) else one for one in known]
    return checked(
        {"enum": listed},
        lambda value: not isinstance(value, bool) and value in listed,
        ", ".join(map(str, listed)),
    )


@dataclass(frozen=True, slots=True)
class Named:
    """The JSON name of a member, if it is not the camel case of the Python name."""

    text: str


@dataclass(frozen=True, slots=True)
class Also:
    """A second JSON name of a member. If a request has both names, the values must be equal."""

    text: str


class _Presence(Enum):
    MAY_BE_ABSENT = "may be absent"
    MAY_BE_ABSENT_OR_NULL = "may be absent or null"


Maybe = Annotated[T | None, _Presence.MAY_BE_ABSENT]
MaybeNull = Annotated[T | None, _Presence.MAY_BE_ABSENT_OR_NULL]


class Absent(Enum):
    """The value of an absent member, where null has a different meaning."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Body:
    """The parsed members of a request's body or query.

    A subclass made with `is_closed=True` refuses members that it does not name.
    """

    is_closed: ClassVar[bool] = False

    def __init_subclass__(cls, *, is_closed: bool | None = None) -> None:
        super().__init_subclass__()
        if is_closed is not None:
            cls.is_closed = is_closed
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def respelled(cls, raw: Any) -> Any:
        """Return the raw value with canonical member names, for subclasses with other spellings."""
        return raw


B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a declared class.

    `name` is the Python name; `also` is a second JSON name, or None. `hint` is the type without
    None; `kind` bounds it, if it is not None.
    """

    name: str
    json_name: str
    also: str | None
    hint: Any
    kind: Kind | None
    description: str
    may_be_absent: bool
    may_be_null: bool
    default: Any


def members_of(declared: type) -> tuple[Member, ...]:
    """Return the members of a class; the members of its base classes come first."""
    known = _MEMBERS.get(declared)
    if known is None:
        known = _MEMBERS[declared] = _members_of(declared)
    return known


_MEMBERS: Final[dict[type, tuple[Member, ...]]] = {}


def _members_of(declared: type) -> tuple[Member, ...]:
    hints = typing.get_type_hints(declared, include_extras=True)
    defaults = _with_defaults(declared)
    return tuple(
        _member(name, hint, defaults.get(name, MISSING))
        for name, hint in hints.items()
        if typing.get_origin(hint) is not ClassVar
    )


@cache
def json_name(name: str) -> str:
    """Return the camel case of a Python name."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _with_defaults(declared: Any) -> dict[str, Any]:
    if not issubclass(declared, Body):
        return {}
    return {field.name: field.default for field in fields(declared)}


def _member(name: str, hint: Any, default: Any) -> Member:
    hint, extras = _unwrapped(hint)
    presence = next((extra for extra in extras if isinstance(extra, _Presence)), None)
    inner, is_nullable = _without_none(hint)
    inner, more = _unwrapped(inner)
    extras = more + extras
    named = next((extra.text for extra in extras if isinstance(extra, Named)), json_name(name))
    # The outermost text is the one at the member. It is more specific than the text of the type.
    texts = [extra for extra in extras if isinstance(extra, str)]
    return Member(
        name=name,
        json_name=named,
        also=next((extra.text for extra in extras if isinstance(extra, Also)), None),
        hint=inner,
        kind=next((extra for extra in extras if isinstance(extra, Kind)), None),
        description=texts[-1] if texts else SHARED_DESCRIPTIONS.get(named, ""),
        may_be_absent=presence is not None or default is not MISSING,
        may_be_null=is_nullable and presence is not _Presence.MAY_BE_ABSENT,
        default=None if default in (MISSING, ABSENT) else default,
    )


def _unwrapped(hint: Any) -> tuple[Any, list[Any]]:
    if typing.get_origin(hint) is not Annotated:
        return hint, []
    inner, *extras = typing.get_args(hint)
    return inner, extras


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether None was a part of it.

    `Absent` is removed, too: it has no form in JSON.
    """
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    arms = [arm for arm in typing.get_args(hint) if arm not in (type(None), Absent)]
    is_nullable = type(None) in typing.get_args(hint)
    inner = arms[0] if len(arms) == 1 else typing.Union[tuple(arms)]  # noqa: UP007
    return inner, is_nullable


# -- schemas ---------------------------------------------------------------------------------------

_OF_TYPES: Final[Mapping[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
    object: {},
}


class Schemas:
    """The JSON Schemas of declared classes, by the name of the class.

    `components`: the schemas that were requested so far, and all schemas to which they refer.
    """

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def of(self, declared: Any) -> Schema:
        """Return the schema of a `Kind` or annotation; for a class, a reference to its schema."""
        if isinstance(declared, Kind):
            return dict(declared.schema)
        if isinstance(declared, tuple):
            return {"anyOf": [self.of(one) for one in declared]}
        hint, extras = _unwrapped(declared)
        kind = next((extra for extra in extras if isinstance(extra, Kind)), None)
        return dict(kind.schema) if kind is not None else self._of_hint(hint)

    def _of_hint(self, hint: Any) -> Schema:
        if hint in _OF_TYPES:
            return dict(_OF_TYPES[hint])
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is list:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is dict:
            values = self.of(arguments[1])
            return {"type": "object", **({"additionalProperties": values} if values else {})}
        if origin in (types.UnionType, typing.Union):
            return {"anyOf": [self.of(arm) for arm in arguments]}
        return self._of_class(hint)

    def _of_class(self, declared: Any) -> Schema:
        name = declared.__name__
        if name not in self.components:
            self.components[name] = {}  # a class may refer to itself
            described = getattr(declared, "described_schema", None)
            schema = self._object(declared) if described is None else described(self)
            self.components[name] = {**schema, "description": _summary_of(declared)}
        return {"$ref": REFERENCE + name}

    def _object(self, declared: type) -> Schema:
        properties: dict[str, Schema] = {}
        required = []
        for member in members_of(declared):
            schema = properties[member.json_name] = self.of_member(member)
            if member.also is not None:
                properties[member.also] = {
                    **schema,
                    "description": f"The same as `{member.json_name}`.",
                }
            if not member.may_be_absent:
                required.append(member.json_name)
        schema = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        if getattr(declared, "is_closed", False):
            schema["additionalProperties"] = False
        elif getattr(declared, "is_open", False):
            schema["additionalProperties"] = True
        return schema

    def of_member(self, member: Member) -> Schema:
        """Return the schema of one member of a class, with its description and default."""
        schema = dict(member.kind.schema) if member.kind is not None else self._of_hint(member.hint)
        texts = (member.description, schema.pop("description", ""))
        if member.may_be_null and schema:
            schema = {"anyOf": [schema, {"type": "null"}]}
        schema["description"] = " ".join(filter(None, texts))
        if member.default is not None:
            # A flag in a query is a text.
            is_flag = member.default is False and "enum" in schema
            schema["default"] = "false" if is_flag else member.default
        return schema


def bulk_schema(plural: str, items: Schema, description: str) -> Schema:
    """Return the schema of a bulk body. Its only member `plural` is the list of items."""
    member = {
        "type": "array",
        "minItems": 1,
        "maxItems": BULK_ITEMS_MAX,
        "items": items,
        "description": description,
    }
    return {"type": "object", "properties": {plural: member}, "required": [plural]}


def _summary_of(declared: Any) -> str:
    """Return the first paragraph of a class's docstring."""
    return " ".join((declared.__doc__ or "").partition("\n\n")[0].split())


# -- parsing ---------------------------------------------------------------------------------------

Read = Callable[[Any, str, ProblemList], Any]


def parsed(declared: type[B], raw: object) -> B:
    """Parse the body of a request.

    Args:
        declared: the class to parse it into.
        raw: the body as a JSON value.

    Raises:
        ServiceError: INVALID_REQUEST with the problems of the body.
    """
    problems = ProblemList()
    value: B = read(declared, raw, problems)
    if problems:
        raise refused(problems)
    return value


def read(declared: type[B], raw: object, problems: ProblemList, path: str = "") -> Any:
    """Parse an object into a class, and add its problems to `problems`.

    Args:
        path: the path of the object in the request, empty for the body itself.

    Returns: an instance of the class; None if a problem was added.
    """
    raw = declared.respelled(raw)
    if not isinstance(raw, dict):
        problems.append(Problem(path or "$", got_of(raw), "a JSON object"))
        return None
    before = len(problems)
    prefix = f"{path}." if path else ""
    if declared.is_closed:
        problems.extend(_unknown(declared, raw, prefix))
    values: Json = {}
    for member, read_member in _readers(declared):
        name = member.json_name
        if member.also is not None and member.also in raw:
            name = _name_given(member, member.also, raw, prefix, problems)
        if name in raw:
            value = raw[name]
            if value is not None or not member.may_be_null:
                value = read_member(value, prefix + name, problems)
            values[member.name] = value
        elif not member.may_be_absent:
            problems.append(Problem(prefix + name, "nothing", _expected(member)))
    return declared(**values) if len(problems) == before else None


def _name_given(member: Member, also: str, raw: Json, prefix: str, problems: ProblemList) -> str:
    """Return the JSON name, one of a member's two names, under which the value is given.

    A null counts as absent if the member may be null. Adds a problem if the two values differ.
    """
    name = member.json_name
    if name not in raw or (member.may_be_null and raw[name] is None):
        return also
    if raw[also] != raw[name] and not (member.may_be_null and raw[also] is None):
        problems.append(
            Problem(
                prefix + also, got_of(raw[also]), f"the same value as {name}, or only one of both"
            )
        )
    return name


def value_of(hint: Any, path: str, raw: object) -> Any:
    """Parse one value of a request.

    Args:
        hint: the type, one of `core/records/api/kinds.py`.
        path: the path of the value in the request.
        raw: the value as a JSON value.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    problems = ProblemList()
    value = read_value(hint, raw, path, problems)
    if problems:
        raise refused(problems)
    return value


def read_value(hint: Any, raw: object, path: str, problems: ProblemList) -> Any:
    """Parse one value, and add its problems to `problems`."""
    return _reader_of(hint)(raw, path, problems)


def refused(problems: ProblemList) -> ServiceError:
    """Return the error for a request with these problems, of which there is at least one."""
    return ServiceError(ErrorCode.INVALID_REQUEST, problems.summary("request"), problems.kept)


def invalid(path: str, got: str, expected: str) -> ServiceError:
    """Return the error for a request with one invalid value."""
    problems = ProblemList()
    problems.append(Problem(path, got, expected))
    return refused(problems)


def _unknown(declared: type[Body], raw: Mapping[str, Any], prefix: str) -> Iterable[Problem]:
    known = [name for m in members_of(declared) for name in (m.json_name, m.also) if name]
    for count, name in enumerate(name for name in raw if name not in known):
        path = prefix + name[:GOT_CHARS_MAX]
        # Only names that the reply lists are compared with the known ones, because 512 KiB of JSON
        # can have 100,000 members.
        yield unknown_member(path, name, known if count < PROBLEMS_MAX else ())


def unknown_member(path: str, name: str, known: Iterable[str]) -> Problem:
    """Return the problem of an unknown member, with the known name that is most similar."""
    expected = "one of the known members" + did_you_mean(name, known)
    if not expected.endswith("?"):
        expected = "one of " + ", ".join(known)
    return Problem(path, "an unknown member", expected)


_READERS: Final[dict[type, tuple[tuple[Member, Read], ...]]] = {}


def _readers(declared: type[Body]) -> tuple[tuple[Member, Read], ...]:
    known = _READERS.get(declared)
    if known is None:
        known = _READERS[declared] = tuple(
            (member, _reader(member.hint, member.kind)) for member in members_of(declared)
        )
    return known


def _reader_of(hint: Any) -> Read:
    inner, extras = _unwrapped(hint)
    return _reader(inner, next((extra for extra in extras if isinstance(extra, Kind)), None))


def _reader(hint: Any, kind: Kind | None) -> Read:
    if kind is not None:
        return _kind_reader(kind)
    if hint in _PLAIN:
        return _kind_reader(_PLAIN[hint])
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _kind_reader(words(arguments))
    if origin is list:
        return _list_reader(_reader_of(arguments[0]))
    if isinstance(hint, type) and issubclass(hint, Body):
        return lambda value, path, problems: read(hint, value, problems, path)
    if hasattr(hint, "read_value"):  # a class with a parser of its own
        reads: Read = hint.read_value
        return reads
    raise TypeError(f"{hint} cannot be read from a request")


def _kind_reader(kind: Kind) -> Read:
    take = kind.read

    def reader(value: Any, path: str, problems: ProblemList) -> Any:
        try:
            return take(value)
        except Mismatch as mismatch:
            problems.append(Problem(path, mismatch.got, mismatch.expected))
            return None

    return reader


def _list_reader(item: Read) -> Read:
    def reader(value: Any, path: str, problems: ProblemList) -> Any:
        if not isinstance(value, list):
            problems.append(Problem(path, got_of(value), "an array"))
            return None
        if len(value) > _ITEMS_MAX:
            problems.append(Problem(path, f"{len(value)} items", f"at most {_ITEMS_MAX} items"))
            return None
        return [item(one, f"{path}[{index}]", problems) for index, one in enumerate(value)]

    return reader


def _plain(expected: str, *wanted: type) -> Kind:
    return checked({}, lambda value: type(value) in wanted, expected)


_WHOLE: Final = _plain("a whole number", int)
_PLAIN: Final[Mapping[Any, Kind]] = {
    str: _plain("a string", str),
    bool: _plain("true or false", bool),
    int: Kind({}, lambda value: _WHOLE.read(as_whole(value))),
    float: _plain("a number", int, float),
    Any: Kind({}),
    dict[str, Any]: _plain("a JSON object", dict),
}


def _expected(member: Member) -> str:
    """Return the description of the values that a missing member may have."""
    problems = ProblemList()
    _reader(member.hint, member.kind)(None, "", problems)
    return problems.kept[0].expected if problems else "a value"


SHARED_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "agentDid": "DID of the agent.",
    "agentId": "DID of the agent; the same as `did`.",
    "amount": "Amount of the transfer.",
    "balance": "Free credits in the wallet after this call.",
    "capabilityId": "Id of the capability.",
    "changelog": "What changed in this version, in words.",
    "comment": "Comment of the payer; null without one.",
    "completedAt": "Time at which the work ended; null before that.",
    "createdAt": "Time of creation.",
    "currency": "Currency of all amounts: CREDITS.",
    "currentUsage": "What the payer has used of the quota.",
    "custodianDid": "DID that can replace the key alone; null without a custodian.",
    "deprecatedAt": "Time of the deprecation; null for an active version.",
    "deadManSwitchDays": "Days without a heartbeat after which the agent passes to the heir.",
    "delayHours": "Hours that a time lock waits before it replaces the key.",
    "did": "DID of the agent.",
    "disputeType": "Kind of complaint.",
    "entry": "The ledger entry that this call made.",
    "etaMs": "Promised duration in milliseconds; null: the promise of the agent's card counts.",
    "evidence": "Evidence for the claim, any JSON object.",
    "expiresAt": "Time of expiry; null: no expiry.",
    "guardians": "DIDs of the guardians.",
    "id": "Id of the record; its typed id has the same value.",
    "inheritsToDid": "DID of the heir, which becomes the owner.",
    "intent": "Purpose of the workflow, in words.",
    "key": "The secret API key. It is shown only in this reply.",
    "keyId": "Id of the key.",
    "kind": "Kind of the ledger entry, from a closed list.",
    "limit": "Maximum number of rows in this page.",
    "limits": "Limits of the payer; null without a quota.",
    "lockedAmount": "Part of the stake that is locked for running work and for bids.",
    "maxConcurrentWorkflows": "Unfinished workflows at the same time; null: no limit.",
    "maxSpendPerDayCents": "Cents held and paid per UTC day; null: no limit.",
    "maxWorkflowsPerDay": "Workflows published per UTC day; null: no limit.",
    "metrics": "Metrics that the agent reported, such as `latency_ms`.",
    "nextCursor": "Value of `cursor` for the next page; null on the last page.",
    "nodeId": "Name of the node.",
    "offset": "Number of rows that were skipped.",
    "ok": "Always true; the same as `success`.",
    "ownerDid": "DID of the owner.",
    "payerDid": "DID of the payer.",
    "receivedAt": "Time at which the bid arrived.",
    "registeredAt": "Time of the registration.",
    "resetsAt": "Time at which the daily counters reset: the next midnight UTC.",
    "resolution": "The decision in words; null while the dispute is open.",
    "result": "Result of the agent, any JSON value.",
    "schemaHash": "SHA-256 over both schemas in canonical form.",
    "scopes": "Scopes of the key.",
    "setAt": "Time of this setting.",
    "setByDid": "DID of the caller who set it; null without a setting.",
    "spentCredits": "Credits paid so far, protocol fees included.",
    "stakedAmount": "Whole stake, free and locked.",
    "startedAt": "Time at which the work started; null before that.",
    "status": "Current state, one of the listed values.",
    "success": "Always true: the request was carried out.",
    "sunsetAt": "Time after which the version may be withdrawn, 12 months after its deprecation.",
    "targetId": "Id of the target.",
    "targetType": "Kind of the target, such as workflow or agent.",
    "taskId": "Id of the workflow as a task.",
    "threshold": "Number of guardians that must sign.",
    "traceId": "W3C trace id, 32 hexadecimal digits.",
    "updatedAt": "Time of the last change; null without one.",
    "versionId": "Id of the version: capability id, `@` and version.",
    "webhookSecret": "Secret that signs the messages to `webhookUrl`.",
    "workflowId": "Id of the workflow.",
}
