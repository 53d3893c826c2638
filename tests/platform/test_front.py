"""HAProxy's limits: put into the configuration that Serve writes, or HAProxy does not start."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from socket import socket

import httpx
import pytest
from ray import serve
from ray.serve._private.http_util import parse_disconnect_disabled_header

from core.settings import Settings
from serve_app.api import all_operations
from serve_app.callers.limits import RateClass
from serve_app.callers.peers import peer_token
from serve_app.supervisor.deployment import Deployment, PortBlock
from serve_app.supervisor.front import ANCHOR, MARK, connections_possible, write_front
from serve_app.supervisor.ray_node import Place, RayNode
from serve_app.supervisor.releases.release import Release
from serve_app.supervisor.spent_callers import NOT_WRITES, UNCOUNTED, WRITES_BY_BODY
from tests.platform.deployments import free_port

KEY = b"k" * 32
SERVES = f"""\
global
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 3600s
    timeout server 60s
{ANCHOR}
    bind 127.0.0.1:1
    default_backend replicas
backend replicas
    server one 127.0.0.1:2
"""


def run(folder: Path, configuration: Path, **settings: int) -> subprocess.CompletedProcess[str]:
    """Let the script have HAProxy check a configuration, as Serve lets it run one."""
    script = write_front(folder, Settings(**settings), KEY)  # type: ignore[arg-type]  # numbers
    return subprocess.run(
        [str(script), "-c", "-db", "-f", str(configuration)], capture_output=True, text=True
    )


def test_the_limits_stand_in_the_frontend_once_and_haproxy_takes_them(tmp_path: Path) -> None:
    configuration = tmp_path / "haproxy.cfg"
    configuration.write_text(SERVES, encoding="ascii")
    for _ in range(2):
        checked = run(tmp_path / "front", configuration, header_timeout_s=7)
        assert checked.returncode == 0, checked.stderr
    text = configuration.read_text(encoding="ascii")
    assert text.count(MARK) == 1
    frontend = text.partition(ANCHOR)[2].partition("backend replicas")[0]
    assert "timeout http-request 7s" in frontend
    assert f'set-header x-callboard-peer "{peer_token(KEY)} %[src]"' in frontend


def test_without_its_frontend_haproxy_does_not_start(tmp_path: Path) -> None:
    configuration = tmp_path / "haproxy.cfg"
    configuration.write_text(SERVES.replace(ANCHOR, "frontend another"), encoding="ascii")
    checked = run(tmp_path / "front", configuration)
    assert checked.returncode == 1
    assert ANCHOR in checked.stderr


def test_serves_own_template_has_the_frontend() -> None:
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    template = Path(spec.origin).parent / "serve" / "_private" / "haproxy_templates.py"
    assert template.read_text(encoding="utf-8").split("\n").count(ANCHOR) == 1


def test_the_token_is_private(tmp_path: Path) -> None:
    script = write_front(tmp_path / "front", Settings(), KEY)
    assert script.parent.stat().st_mode & 0o077 == 0
    for file in script.parent.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file


@pytest.mark.parametrize(("wanted", "least", "most"), [(100, 100, 100), (10**9, 100, 10**9)])
def test_connections_follow_the_limit_of_open_files(wanted: int, least: int, most: int) -> None:
    assert least <= connections_possible(wanted) <= most


def test_what_counts_as_its_method_does_not_say_is_left_to_the_replicas() -> None:
    others = {
        operation.path
        for operation in all_operations()
        if operation.path.startswith("/v1/") and operation.rate is not operation.class_by_method
    }
    assert others == set(NOT_WRITES)
    uncounted = {one.path for one in all_operations() if one.rate is RateClass.EXEMPT}
    assert uncounted - others == set(UNCOUNTED)
    by_body = {operation.path for operation in all_operations() if operation.rate_of is not None}
    assert by_body == set(WRITES_BY_BODY)


class Echo(BaseHTTPRequestHandler):
    """A replica that says whether Serve would leave the client of a request unwatched."""

    protocol_version = "HTTP/1.1"

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        headers = {name.lower().encode(): value.encode() for name, value in self.headers.items()}
        self.send_response(204)
        self.send_header("x-unwatched", str(parse_disconnect_disabled_header(headers)))
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of HAProxy, which runs with our limits in front of an `Echo`."""
    folder, port = tmp_path_factory.mktemp("front"), free_port()
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever).start()
        configuration = folder / "haproxy.cfg"
        text = SERVES.replace("127.0.0.1:1\n", f"127.0.0.1:{port}\n")
        text = text.replace("127.0.0.1:2\n", f"127.0.0.1:{server.server_port}\n")
        configuration.write_text(text, encoding="ascii")
        script = write_front(folder / "front", Settings(), KEY)
        with subprocess.Popen([str(script), "-db", "-f", str(configuration)]) as haproxy:
            transport = httpx.HTTPTransport(retries=8)  # until it listens
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, transport=transport, timeout=60) as http:
                yield http
            haproxy.kill()
        server.shutdown()


@pytest.mark.parametrize("own", [{}, {"x-request-disconnect-disabled": "?1"}], ids=["", "forged"])
@pytest.mark.parametrize(
    ("method", "is_unwatched"),
    [
        ("GET", False),
        ("HEAD", False),
        ("POST", True),
        ("PUT", True),
        ("PATCH", True),
        ("DELETE", True),
    ],
)
def test_serve_watches_the_clients_of_reads_and_waits_alone(
    front: httpx.Client, method: str, is_unwatched: bool, own: dict[str, str]
) -> None:
    for prefer, expected in (({}, is_unwatched), ({"prefer": "wait=5"}, False)):
        reply = front.request(method, "/v1/any", headers={**own, **prefer})
        assert reply.headers["x-unwatched"] == str(expected), prefer


def test_no_value_of_a_client_stands_beside_ours(front: httpx.Client) -> None:
    """The last of two headers of one name counts in Serve."""
    reply = front.post("/v1/any", headers={"X-Request-Disconnect-Disabled": "?0"})
    assert reply.headers["x-unwatched"] == "True"


def test_serve_reads_what_is_set_for_it(tmp_path: Path) -> None:
    """A name that Serve does not know changes nothing, and nothing says so."""
    deployment = Deployment(tmp_path / "home", tmp_path / "run")
    with socket() as unused:
        ports = PortBlock(12_000, unused)
        node = RayNode(deployment, ports, Settings(), Place(is_cluster=True))
        names = [one for one in node.environment("m", {}, Release.own()) if "_SERVE_" in one]
    assert "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER" in names
    read = Path(serve.__file__).parent.rglob("*.py")
    text = "".join(file.read_text(encoding="utf-8") for file in read)
    assert [name for name in names if f'"{name}"' not in text] == []
