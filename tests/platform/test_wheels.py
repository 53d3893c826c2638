"""Both wheels: what they hold, and that the light one is enough for agents and payers.

Decision requests-json-and-client.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import httpx
import pytest

from tests.platform import wheels
from tests.platform.deployments import RunningDeployment

ROOT = wheels.ROOT
PACKAGES = ("core", "ledger", "federation", "actors", "serve_app", "callboard")
SERVER_ONLY = ("ray", "psycopg", "sqlalchemy", "httptools", "starlette", "msgspec", "cryptography")

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Wheel:
    """A built wheel, read."""

    path: Path

    @property
    def files(self) -> set[str]:
        """Its files but for its metadata."""
        with zipfile.ZipFile(self.path) as archive:
            return {name for name in archive.namelist() if ".dist-info/" not in name}

    @property
    def metadata(self) -> dict[str, list[str]]:
        """Its metadata, every field a list."""
        with zipfile.ZipFile(self.path) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            parsed = Parser().parsestr(archive.read(name).decode())
        return {field: parsed.get_all(field, []) for field in set(parsed.keys())}


@dataclass(frozen=True)
class Wheels:
    """Both wheels, in a folder from which they can be installed."""

    folder: Path
    light: Wheel
    server: Wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Both wheels, and a wheel of each package that the light one needs."""
    folder = tmp_path_factory.mktemp("wheels")
    light = Wheel(wheels.build(ROOT, folder))
    server = Wheel(wheels.build(wheels.SERVER, folder))
    required = [text for text in light.metadata["Requires-Dist"] if "extra ==" not in text]
    for installed in wheels.closure(required).values():
        wheels.packed(installed, folder)
    return Wheels(folder, light, server)


@pytest.fixture(scope="module")
def light(built: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the light wheel and its dependencies, nothing else."""
    return wheels.environment(tmp_path_factory.mktemp("light") / "env", built.folder, "callboard")


def test_the_wheels_share_no_file_and_hold_every_file_of_the_packages(built: Wheels) -> None:
    assert not built.light.files & built.server.files
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert built.light.files | built.server.files == set(listed.stdout.split())


def test_the_wheels_are_typed(built: Wheels) -> None:
    assert {"callboard/py.typed", "core/py.typed"} <= built.light.files
    assert {f"{p}/py.typed" for p in PACKAGES[1:-1]} <= built.server.files


def test_the_wheels_have_one_version_and_need_each_other_at_it(built: Wheels) -> None:
    light, server = built.light.metadata, built.server.metadata
    assert (light["Name"], server["Name"]) == (["callboard"], ["callboard-server"])
    (version,) = light["Version"]
    assert server["Version"] == [version]
    assert f"callboard-server=={version}; extra == 'server'" in light["Requires-Dist"]
    assert f"callboard=={version}" in server["Requires-Dist"]


def test_the_light_wheel_needs_little(built: Wheels) -> None:
    required = [text for text in built.light.metadata["Requires-Dist"] if "extra ==" not in text]
    assert {text.partition(">")[0] for text in required} == {
        "httpx",
        "pydantic",
        "pynacl",
        "rich",
        "typer",
        "uvicorn",
    }


EVERY_MODULE = """
import importlib, pkgutil, sys, time
began = time.perf_counter()
import callboard
for name in callboard.__all__:
    getattr(callboard, name)
print(f"import of all names: {time.perf_counter() - began:.3f} s", file=sys.stderr)
import core
for package in (callboard, core):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print([name for name in sys.argv[1:] if name in sys.modules or importlib.util.find_spec(name)])
"""
ONLY_IMPORT = (
    "import time; b = time.perf_counter(); import callboard; print(time.perf_counter() - b)"
)


def test_every_module_of_the_light_wheel_loads_without_the_service(
    light: Path, tmp_path: Path
) -> None:
    loaded = wheels.run([str(light), "-c", EVERY_MODULE, *SERVER_ONLY], tmp_path)
    assert loaded.stdout == "[]\n", loaded.stderr
    alone = wheels.run([str(light), "-c", ONLY_IMPORT], tmp_path)
    sys.stdout.write(f"import callboard: {float(alone.stdout):.4f} s; {loaded.stderr}")


AGENT = """
from callboard import Agent, Context

agent = Agent("did:net:light-agent", "Light", private_key=KEY)

@agent.capability("cap.test.light.v1", price_cents=40)
def shout(text: str, context: Context) -> dict:
    context.report_tokens(written=3)
    return {"text": text.upper(), "attempt": context.attempt, "is_timed": context.left_s > 0}

agent.run(deregister=True)
"""
PAYER = """
import json
from callboard import Client, WorkflowFailed

with Client() as client:
    node = {"capabilityId": "cap.test.light.v1", "payload": {"text": "all hands"}}
    handle = client.publish({"nodes": {"shout": node}})
    record = handle.result(timeout_s=60)
    entries = list(client.iterate_transactions(workflow_id=handle.workflow_id, limit=1))
    try:
        client.publish({"nodes": {"shout": {**node, "payload": {"text": 5}}}}).result()
    except WorkflowFailed as failed:
        code = failed.code
    print(json.dumps({
        "result": record.results["shout"],
        "tokens": record.nodes["shout"].metrics["tokens_used"],
        "spent": record.spent_credits,
        "kinds": sorted(entry.kind for entry in entries),
        "refused": code,
    }))
"""


@pytest.fixture
def caller(deployment: RunningDeployment) -> dict[str, str]:
    """The variables by which programs find the service, with an administrator's key."""
    return {"CALLBOARD_URL": deployment.url, "CALLBOARD_API_KEY": deployment.admin_key}


def test_an_agent_of_the_light_wheel_is_paid_and_its_result_is_read(
    light: Path, tmp_path: Path, caller: dict[str, str], deployment: RunningDeployment
) -> None:
    key = "'" + "a2V5" * 10 + "a2U='"
    headers = {"x-api-key": deployment.admin_key}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=60) as admin:
        admin.post("/v1/ledger/deposit", json={"amount": 10}).raise_for_status()
        with subprocess.Popen(
            [str(light), "-I", "-c", AGENT.replace("KEY", key)],
            cwd=tmp_path,
            env=caller,
            stdout=subprocess.PIPE,
            text=True,
        ) as agent:
            try:
                assert agent.stdout is not None
                assert "ready at" in agent.stdout.readline()
                paid = wheels.run([str(light), "-I", "-c", PAYER], tmp_path, **caller)
                card = admin.get("/v1/agents/did:net:light-agent").json()
            finally:
                agent.terminate()
            assert agent.wait(60) == 0
        assert paid.returncode == 0, paid.stderr
        assert json.loads(paid.stdout) == {
            "result": {"text": "ALL HANDS", "attempt": 1, "is_timed": True},
            "tokens": 3,
            "spent": 0.4,
            "kinds": ["escrow_hold", "node_payment", "protocol_fee"],
            "refused": "INPUT_SCHEMA",
        }
        assert card["live"]["status"] == "healthy", "it has sent a heartbeat"
        assert card["acard"]["publicKey"]
        account = admin.get("/v1/ledger/accounts/did:net:light-agent").json()
        assert account["balance"] == pytest.approx(0.38)
        assert admin.get("/v1/agents/did:net:light-agent?includeInactive=true").json()[
            "status"
        ] == ("inactive")


def callboard(python: Path) -> str:
    """Return the command of an environment."""
    return str(python.parent / "callboard")


def test_the_light_command_reads_and_verifies(
    light: Path, tmp_path: Path, caller: dict[str, str]
) -> None:
    listed = wheels.run([callboard(light), "agent", "list"], tmp_path, **caller)
    assert listed.returncode == 0, listed.stderr
    command = [callboard(light), "audit", "verify", "--output", "json"]
    verified = wheels.run(command, tmp_path, **caller)
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["intact"] is True


@pytest.mark.parametrize(
    "verb", [("up", "--detach"), ("upgrade",), ("rotate-deployment-key",), ("demo", "--help")]
)
def test_the_light_command_says_what_the_servers_verbs_need(
    light: Path, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    refused = wheels.run([callboard(light), *verb], tmp_path)
    sentence = f"`{verb[0]}` needs the server: pip install 'callboard[server]'"
    assert (refused.returncode, refused.stderr) == (2, f"callboard: {sentence}\n")
