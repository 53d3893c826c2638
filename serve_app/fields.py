"""Members of bodies that several routes read alike: closed sets of members, names of nodes, times.

Each returns a value within its bound or refuses the request by the member's name. contract.md
section 2 (Strictness, Texts).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from core.errors import ErrorCode, Problem, ServiceError
from core.records.bounds import NODE_NAME_CHARS_MAX, is_capability_id, is_node_name
from core.timestamps import unix_ms
from serve_app.calls import invalid, kind_of
from serve_app.lists import parse_time


def refuse_unknown(body: Mapping[str, Any], known: Collection[str], path: str = "") -> None:
    """Refuse a body with a member that the operation does not know.

    For bodies in which a misspelt member would change rights, money, limits or times.

    Args:
        known: the members the operation reads, in the order in which messages show them.
        path: of the object within the body, empty for the body itself.

    Raises:
        ServiceError: INVALID_REQUEST with one problem for each unknown member.
    """
    prefix = f"{path}." if path else ""
    expected = "one of " + ", ".join(known)
    problems = tuple(
        Problem(f"{prefix}{name[:100]}", "an unknown member", expected)
        for name in body
        if name not in known
    )
    if problems:
        names = ", ".join(problem.path for problem in problems[:5])
        raise ServiceError(
            ErrorCode.INVALID_REQUEST, f"unknown members: {names}; expected {expected}", problems
        )


def node_name_of(path: str, value: object) -> str:
    """Return the name of a node.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    if not isinstance(value, str) or not is_node_name(value):
        expected = f"the name of a node, 1 to {NODE_NAME_CHARS_MAX} characters"
        raise invalid(path, got_of(value), expected)
    return value


def capability_id_of(path: str, value: object) -> str:
    """Return a capability id.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    if not isinstance(value, str) or not is_capability_id(value):
        expected = "letters, digits, dots, dashes, underscores, at most 128 characters"
        raise invalid(path, got_of(value), expected)
    return value


def time_ms_of(path: str, value: object) -> int:
    """Return a time as Unix milliseconds.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    return unix_ms(parse_time(path, value))


def got_of(value: object) -> str:
    """Return what a message says was got: a text itself, of other values their kind."""
    return value[:100] if isinstance(value, str) else kind_of(value)
