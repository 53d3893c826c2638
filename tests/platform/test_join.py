"""`callboard join`: what a machine needs before it joins, and that it comes back after a death.

A bare Ray head stands for the cluster's: the worker's supervisor needs no more of it. A whole
cluster on hosts of its own is tests/platform/test_cluster_demo.py, in the soak.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from callboard.demo.processes import supervisor as supervisor_command
from core.settings import Settings
from serve_app.settings_from_env import (
    child_environment,
    load_settings,
    settings_as_environment,
)
from serve_app.supervisor.deployment import Deployment, DeploymentError, PortBlock, run_folder_of
from serve_app.supervisor.machines.preflight import (
    check_machine,
    split_address,
)
from serve_app.supervisor.processes import marked_processes, process_name
from serve_app.supervisor.ray_node import Place, restart_pause_s
from tests.conftest import Database
from tests.platform.deployments import ROOT, free_port, supervisor
from tests.platform.waiting import wait_until

LOOPBACK = Place("127.0.0.1", is_cluster=True)
WHOLE = {"deployment_key": "ab" * 32, "ray_token": "t" * 32, "database_url": "postgresql://db/x"}


# --- what is missing ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deployment_key", "ray_token", "database_url"])
def test_join_names_the_setting_that_is_missing(name: str, tmp_path: Path) -> None:
    settings = Settings(home=str(tmp_path), **{**WHOLE, name: ""})
    with pytest.raises(DeploymentError, match=f"^{name} is not set: a cluster's machines need"):
        check_machine(settings, LOOPBACK)


def test_join_needs_a_database_that_others_reach() -> None:
    settings = Settings(**{**WHOLE, "database_url": "postgresql://u@localhost/x"})
    with pytest.raises(DeploymentError, match="names an address of this machine only"):
        check_machine(settings, Place("192.0.2.77", is_cluster=True))


def test_join_refuses_an_address_of_another_machine() -> None:
    with pytest.raises(DeploymentError, match=r"192\.0\.2\.77 is not an address of this machine"):
        check_machine(Settings(**WHOLE), Place("192.0.2.77", is_cluster=True))


def test_join_refuses_secrets_that_others_may_read(tmp_path: Path) -> None:
    file = tmp_path / "callboard.toml"
    file.write_text("", encoding="utf-8")
    file.chmod(0o644)
    with pytest.raises(DeploymentError, match=f"may read it: chmod 600 {file}"):
        check_machine(Settings(home=str(tmp_path), **WHOLE), LOOPBACK)
    file.chmod(0o600)
    check_machine(Settings(home=str(tmp_path), **WHOLE), LOOPBACK)


@pytest.mark.parametrize("text", ["", "10.0.0.1", ":1", "10.0.0.1:", "10.0.0.1:x", "h:65536"])
def test_head_address_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(DeploymentError, match="expected host or host:port"):
        split_address(text)


def test_head_address_is_read() -> None:
    assert split_address("10.0.0.1:12000") == ("10.0.0.1", 12000)
    assert split_address("[fd00::1]:12000") == ("fd00::1", 12000)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ((), "one of the arguments --head --as-head is required"),
        (("--as-head", "--head", "10.0.0.1"), "not allowed with argument"),
        (("--head", "10.0.0.1:x"), "expected host or host:port"),
        (("--as-head", "--ports", "80"), "expected 1024 to 32700"),
    ],
)
def test_join_with_wrong_arguments_is_usage(flags: tuple[str, ...], reason: str) -> None:
    done = supervisor("join", "--home", "/nowhere", "--node-address", "127.0.0.1", *flags)
    assert done.returncode == 2
    assert reason in done.stderr


def test_ports_of_a_cluster_that_are_in_use_are_named() -> None:
    with closing(PortBlock.reserve("00000099")) as block:
        with pytest.raises(DeploymentError, match=f"port {block.first} is in use"):
            PortBlock.reserve_at(block.first)
        first = block.first
    with socket.socket() as taken:
        taken.bind(("", first + 7))
        taken.listen()
        with pytest.raises(DeploymentError, match=f"port {first + 7} is in use"):
            PortBlock.reserve_at(first)


def test_port_that_a_killed_replica_has_left_open_keeps_no_machine_away() -> None:
    with closing(PortBlock.reserve("00000099")) as block:
        first = block.first
    with socket.socket() as left:
        left.bind(("", first + 20))
        left.listen()
        PortBlock.reserve_at(first).close()


def test_a_cluster_has_other_defaults_unless_they_are_given(tmp_path: Path) -> None:
    from serve_app.supervisor.__main__ import _cluster_defaults

    flags = {"home": str(tmp_path)}
    expected = {"egress_allow": "", "host": "0.0.0.0", "machines_max": "64"}
    assert _cluster_defaults(load_settings(flags, {})) == expected
    own = {
        "CALLBOARD_EGRESS_ALLOW": "127.0.0.0/8",
        "CALLBOARD_MACHINES_MAX": "3",
    }
    given = load_settings({**flags, "host": "10.0.0.1"}, own)
    assert _cluster_defaults(given) == {}


def test_in_a_cluster_no_agent_lives_on_loopback_unless_a_setting_says_so(tmp_path: Path) -> None:
    """A machine's own services listen there. What processes are told has it, too."""
    from serve_app.supervisor.__main__ import _cluster_defaults

    flags = {"home": str(tmp_path)}
    alone = load_settings(flags, {})
    assert "127.0.0.0/8" in alone.settings.egress_allow
    joined = load_settings(flags | _cluster_defaults(alone), {})
    assert joined.settings.egress_allow == ()
    told = settings_as_environment(joined)
    assert load_settings({}, told).settings.egress_allow == ()


def test_an_autoscalers_machine_waits_to_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its cloud calls it is all of a shell's words about Ray that reaches Ray."""
    monkeypatch.delenv("RAY_CLOUD_INSTANCE_ID", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "10.9.9.9:1")
    assert restart_pause_s(child_environment({})) == 0.0
    monkeypatch.setenv("RAY_CLOUD_INSTANCE_ID", "pod-1")
    assert "RAY_ADDRESS" not in child_environment({})
    # Longer than its autoscaler needs to see that Ray has ended.
    assert restart_pause_s(child_environment({})) > 5.0


# --- a real worker at a real head -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """A bare Ray head: where it is and its token."""

    address: str
    token: str


@pytest.fixture(scope="module")
def head(short_folder: Path) -> Iterator[Head]:
    """Start a head that takes a token, and end it by its process id."""
    token_file = short_folder / "t"
    token_file.write_text(secrets.token_hex(32), encoding="ascii")
    token_file.chmod(0o600)
    own = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    environment = own | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file)}
    environment["RAY_raylet_start_wait_time_s"] = "120"  # a busy machine takes longer than 30 s
    with closing(PortBlock.reserve("00000042")) as ports:
        command = [sys.executable, str(Path(sys.executable).parent / "ray"), "start", "--head"]
        command += ["--block", "--node-ip-address=127.0.0.1", f"--port={ports.first}"]
        command += [f"--temp-dir={short_folder / 'h'}", "--include-dashboard=false"]
        command += [f"--dashboard-agent-listen-port={ports.first + 2}", "--no-monitor"]
        command += [f"--ray-client-server-port={ports.first + 3}", "--num-cpus=1"]
        command += [f"--metrics-export-port={ports.first + 4}", "--min-worker-port=0"]
        command += ["--max-worker-port=0", "--disable-usage-stats", "--include-log-monitor=false"]
        command += ["--dashboard-host=192.0.2.1", "--object-store-memory=80000000"]
        log = short_folder / "head.log"
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        try:
            wait_until(lambda: "Ray runtime started" in log.read_text() or has_ended(process))
            assert not has_ended(process), log.read_text()
            yield Head(f"127.0.0.1:{ports.first}", token_file.read_text(encoding="ascii"))
        finally:
            process.terminate()
            process.wait()


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def joining(home: Path, head: Head, database: Database, token: str) -> list[str]:
    """Write a worker's settings and return the command that lets it join."""
    home.mkdir()
    file = home / "callboard.toml"
    file.write_text(
        f'database_url = "{database.service_url}"\nray_token = "{token}"\n'
        f'deployment_key = "{"cd" * 32}"\nray_cpus = 1\n',
        encoding="utf-8",
    )
    file.chmod(0o600)
    place = ["--head", head.address, "--node-address", "127.0.0.1"]
    with closing(PortBlock.reserve("00000077")) as free:
        place += ["--ports", str(free.first)]
    arguments = ["join", "--home", str(home), *place, "--port", str(free_port())]
    return supervisor_command(*arguments)


def raylets(home: Path) -> set[int]:
    marked = marked_processes(Deployment(home, Path()).id)
    return {pid for pid in marked if process_name(pid) == "raylet"}


@pytest.mark.slow
def test_worker_with_another_token_is_refused(
    head: Head, database: Database, short_folder: Path
) -> None:
    command = joining(short_folder / "stranger", head, database, "f" * 64)
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 1
    text = "Ray did not start: check that ray_token, Ray and Python are those of the head"
    assert text in refused.stderr
    assert "AuthenticationError" in refused.stderr


@pytest.mark.slow
def test_killed_raylet_of_a_worker_is_restarted_and_all_ends_with_its_supervisor(
    head: Head, database: Database, short_folder: Path
) -> None:
    home = short_folder / "worker"
    command = joining(home, head, database, head.token)
    log = short_folder / "worker.log"
    with log.open("wb") as file:
        worker = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
    try:
        belongs = f"this machine belongs to the cluster of {head.address}"
        wait_until(lambda: belongs in log.read_text() or has_ended(worker))
        assert not has_ended(worker), log.read_text()
        assert run_folder_of(home).is_dir()
        [killed] = raylets(home)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: f"Ray is back, {belongs}" in log.read_text())
        [again] = raylets(home)
        assert again != killed
    finally:
        worker.terminate()
        worker.wait()
    assert marked_processes(Deployment(home, Path()).id, run_folder_of(home)) == []
    assert not run_folder_of(home).exists()
