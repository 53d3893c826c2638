"""HAProxy lines that refuse callers over their rate limit, without asking a replica each time.

Theory of operation: a replica's reply to a request over the rate limit has the header
`SPENT_HEADER`. The header has the end of the window (Unix time, seconds) and the limit. HAProxy
removes the header and stores both values in a table. The key is the hash of the caller (the
credential, or the address if there is none) and of the class of the request (read or write). Until
the end of the window, HAProxy itself answers the caller's requests of this class, with the reply
that a replica would give.

A refusal takes a replica half a millisecond, and 80 refusals at the same time delay all callers.
HAProxy needs a twentieth of this time. Entries expire after a minute by HAProxy's own timer. So no
caller is refused for longer if the machine's clock is set back. Operations whose class differs from
that of their method always go to a replica. Decision limits-and-admission.
"""

from __future__ import annotations

import re
from typing import Final

from core.errors import ErrorCode, ServiceError
from ledger.operational import WINDOW_MS
from serve_app.callers.limits import SPENT_HEADER
from serve_app.http.errors import PROBLEM_TYPE, STATUS, problem_text

_TABLE: Final = "callboard_spent"
# The variable with the request's path, with a single slash at the beginning.
PATH: Final = "txn.spent_path"
_ENTRIES_MAX: Final = 50_000
_HEADER: Final = SPENT_HEADER.decode()
_WINDOW_S: Final = WINDOW_MS // 1_000
# Paths whose requests do not count as writes. For all other paths, a request with a method other
# than GET and HEAD counts as a write.
NOT_WRITES: Final = (
    "/v1/workflows/nodeResult",
    "/v1/workflows/publish/bulk",
    "/v1/agents/register/bulk",
    "/v1/agents/{did}/heartbeat",
    "/v1/heartbeat",
    "/v1/quotas/{did}/check",
    "/v1/agent/discovery",
    "/v1/capabilities/negotiate",
    "/v1/workflows/suggest",
    "/v1/receipts/verify",
    "/v1/signed-results/{node}/verify",
    "/v1/federation/peers/heartbeat",
)
# Paths whose requests are never limited. Some paths in `NOT_WRITES` are not limited either.
UNCOUNTED: Final = ("/", "/health", "/ready", "/openapi.json", "/docs")
# Paths whose requests count as reads if their body asks for a dry run, else as writes.
WRITES_BY_BODY: Final = ("/v1/workflows/publish",)
# HAProxy has certainly received so many bytes of a body. A longer body may contain `dryRun` in the
# bytes that are not received yet.
_SEEN_BYTES: Final = 8_192


def table_lines() -> list[str]:
    """Return the configuration section with the table of refused callers."""
    return [
        f"backend {_TABLE}",
        f"    stick-table type binary len 20 size {_ENTRIES_MAX} expire {_WINDOW_S}s store gpt(2)",
    ]


def refusing_lines(address: str) -> list[str]:
    """Return the lines for the frontend. They must come after the line that sets `PATH`.

    Args:
        address: the variable with the caller's address.
    """
    not_writes = "|".join(_pattern(path) for path in NOT_WRITES)
    by_body = "|".join(_pattern(path) for path in WRITES_BY_BODY)
    # Unknown paths are limited too: a replica may decode them.
    is_limited = f"!{{ var({PATH}) -m str {' '.join(UNCOUNTED)} }}"
    is_write = "{ var(txn.spent_class) -m str write }"
    left = "{ var(txn.spent_left) -m int gt 0 }"
    code = ErrorCode.RATE_LIMITED
    detail = (
        "more than %[var(txn.spent_limit)] %[var(txn.spent_class)] operations in a minute,"
        " again in %[var(txn.spent_wait)] s"
    )
    body = problem_text(ServiceError(code, detail), "%[var(txn.spent_request),json(utf8s)]")
    policy = quoted('"%[var(txn.spent_class)]"')
    headers = (
        ("x-request-id", "%[var(txn.spent_request)]"),
        ("retry-after", "%[var(txn.spent_wait)]"),
        ("ratelimit-policy", f"{policy};q=%[var(txn.spent_limit)];w={_WINDOW_S}"),
        ("ratelimit", f"{policy};r=0;t=%[var(txn.spent_wait)]"),
        ("x-ratelimit-limit", "%[var(txn.spent_limit)]"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "%[var(txn.spent_until)]"),
    )
    return [
        "    http-request set-var(txn.spent_class) str(write)",
        "    http-request set-var(txn.spent_class) str(read) if { method GET HEAD }",
        f"    http-request set-var(txn.spent_caller) var({address})",
        "    http-request set-var(txn.spent_caller) req.fhdr(authorization),word(-1,' '\\t)"
        " if { req.fhdr(authorization) -m found }",
        "    http-request set-var(txn.spent_caller) req.fhdr(x-api-key)"
        " if { req.fhdr(x-api-key) -m found }",
        "    http-request set-var(txn.spent_key)"
        " var(txn.spent_class),concat(' ',txn.spent_caller),sha1",
        f"    http-request set-var(txn.spent_until) var(txn.spent_key),table_gpt(0,{_TABLE})",
        f"    http-request set-var(txn.spent_limit) var(txn.spent_key),table_gpt(1,{_TABLE})",
        "    http-request set-var(txn.spent_now) date",
        "    http-request set-var(txn.spent_left) var(txn.spent_until),sub(txn.spent_now)",
        f"    http-request set-var(txn.spent_left) int(0) if {is_write}"
        f" {{ var({PATH}) -m reg ^({not_writes})/?$ }}",
        f"    http-request set-var(txn.spent_left) int(0) if {is_write}"
        f" {{ var({PATH}) -m reg ^({by_body})/?$ }} {{ req.body_size gt {_SEEN_BYTES} }}",
        f"    http-request set-var(txn.spent_left) int(0) if {is_write}"
        f" {{ var({PATH}) -m reg ^({by_body})/?$ }} {{ req.body -m sub dryRun }}",
        # HAProxy does not know the DID that signed a request, so signed requests go to a replica.
        "    http-request set-var(txn.spent_left) int(0) if"
        " { req.fhdr(signature-input) -m found } !{ req.fhdr(authorization) -m found }"
        " !{ req.fhdr(x-api-key) -m found }",
        # Both times are rounded down to seconds, so one second is added, up to a minute.
        f"    http-request set-var(txn.spent_wait) var(txn.spent_left),add(1) if {left}",
        f"    http-request set-var(txn.spent_wait) int({_WINDOW_S}) if {left}"
        f" {{ var(txn.spent_wait) -m int gt {_WINDOW_S} }}",
        f"    http-request set-var(txn.spent_request) uuid if {left}",
        "    http-request set-var(txn.spent_request) req.fhdr(x-request-id),bytes(0,128)"
        f" if {left} {{ req.fhdr(x-request-id) -m len gt 0 }}",
        f"    http-request return status {STATUS[code]} content-type {PROBLEM_TYPE.decode()}"
        + "".join(f' hdr {name} "{value}"' for name, value in headers)
        + f' lf-string "{quoted(body)}" if {is_limited} {left}',
        f"    http-response track-sc1 var(txn.spent_key) table {_TABLE}"
        f" if {{ res.hdr({_HEADER}) -m found }}",
        f"    http-response sc-set-gpt(0,1) res.hdr({_HEADER}),field(1,';')"
        f" if {{ res.hdr({_HEADER}) -m found }}",
        f"    http-response sc-set-gpt(1,1) res.hdr({_HEADER}),field(2,';')"
        f" if {{ res.hdr({_HEADER}) -m found }}",
        f"    http-response del-header {_HEADER}",
    ]


def quoted(text: str) -> str:
    """Return a text escaped for a quoted string in HAProxy's configuration."""
    return text.replace('"', '\\"')


def _pattern(path: str) -> str:
    return re.sub(r"\{[a-z_]+\}", "[^/]+", path)
