"""A sample of every message that there is, made of its field types."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from actors.dispatch.remote_dispatch import OrderMessage
from actors.transport.messages import OwnerAnswer, OwnerRequest
from actors.transport.wire import Refusal
from core.message import Message
from core.shards.lease_messages import Lease, Renewal
from core.workflow.events import Record
from ledger.commands import Outcome
from ledger.registry import ANY_COMMAND

_PLAIN: dict[Any, Any] = {
    str: "x",
    int: 2**62,
    bool: True,
    bytes: b"\x00\xff",
    float: 0.5,
    Decimal: Decimal("0.000000000001"),
    Any: {"n": [1, None]},
}


def families() -> dict[str, Any]:
    """Return the closed unions of what travels, by name."""
    return {
        "command": ANY_COMMAND,
        "record": Record,
        "outcome": Outcome,
        "request": OwnerRequest,
        "reply": OwnerAnswer | Refusal,
        "renewal": Renewal,
        "lease": Lease,
        "order": OrderMessage,
    }


def members(union: Any) -> list[type[Message]]:
    """Return the types in a union, sorted by name."""
    kinds = get_args(union) if _is_union(union) else (union,)
    return sorted(
        (kind for kind in kinds if kind is not type(None)), key=lambda kind: kind.__name__
    )


def full(kind: type[Message]) -> Message:
    """Return a message with every field set, to other than its default."""
    return kind(**{name: _value(hint) for name, hint in _fields(kind)})


def required(kind: type[Message]) -> Message:
    """Return a message with only those fields set that have no default."""
    without = {item.name for item in msgspec.structs.fields(kind) if item.required}
    return kind(**{name: _value(hint) for name, hint in _fields(kind) if name in without})


def _fields(kind: type[Message]) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind)
    for name in kind.__struct_fields__:
        yield name, hints[name]


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _value(hint: Any) -> Any:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if _is_union(hint):
        return _value(next(one for one in arguments if one is not type(None)))
    if origin is Literal:
        return arguments[-1]
    if origin is tuple:
        return tuple(_value(one) for one in arguments if one is not Ellipsis)
    if origin is list:
        return [_value(arguments[0])]
    if origin in (dict, Mapping):
        return {"key": _value(arguments[1])}
    if issubclass(hint, enum.Enum):
        return list(hint)[-1]
    if issubclass(hint, Message):
        return full(hint)
    # `Problem`, which is no message of its own.
    return hint(*map(_value, get_type_hints(hint).values()))
