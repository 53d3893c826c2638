"""A deployment's folder: its name, its lock, its ports, its secrets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from serve_app.supervisor.deployment import (
    BLOCK_SIZE,
    AlreadyRunning,
    Deployment,
    DeploymentError,
    PortBlock,
    deployment_id,
    is_free,
)

ROOT = Path(__file__).resolve().parent.parent.parent
_HOLDER = """
import sys
from pathlib import Path
from serve_app.supervisor.deployment import Deployment
held = Deployment(Path(sys.argv[1]), Path(sys.argv[2])).lock()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def prepared(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "home", tmp_path / "run")


def test_one_home_has_one_id_whatever_way_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    assert deployment_id(tmp_path / "link") == deployment_id(tmp_path / "home")
    assert deployment_id(tmp_path / "home") != deployment_id(tmp_path / "other")


def test_run_folder_leaves_room_for_socket_names(tmp_path: Path) -> None:
    long = tmp_path / ("long" * 20)
    long.mkdir()
    script = "from serve_app.supervisor.deployment import *; print(run_folder_of(Path('/home')))"
    shown = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(long)}, capture_output=True, text=True,
    )  # fmt: skip
    assert 0 < len(shown.stdout.strip()) <= 32, shown.stderr


def test_lock_is_exclusive_and_ends_with_its_holder(prepared: Deployment) -> None:
    command = [sys.executable, "-c", _HOLDER, str(prepared.home), str(prepared.run_folder)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert prepared.holder() == holder.pid
        with pytest.raises(AlreadyRunning, match=str(holder.pid)):
            prepared.lock()
        holder.kill()
    assert prepared.holder() is None
    os.close(prepared.lock())


def test_secrets_are_made_once_and_private(prepared: Deployment) -> None:
    prepared.prepare()
    key = prepared.deployment_key_file.read_text(encoding="ascii")
    prepared.prepare()
    assert prepared.deployment_key_file.read_text(encoding="ascii") == key
    assert len(bytes.fromhex(key)) == 32
    for path in (prepared.deployment_key_file, prepared.ray_token_file):
        assert path.stat().st_mode & 0o777 == 0o600
    assert prepared.run_folder.stat().st_mode & 0o777 == 0o700


def test_run_folder_that_a_stranger_put_there_is_refused(prepared: Deployment) -> None:
    (prepared.run_folder.parent / "elsewhere").mkdir()
    prepared.run_folder.symlink_to(prepared.run_folder.parent / "elsewhere")
    with pytest.raises(DeploymentError, match="belongs to another user"):
        prepared.make_run_folder()


def test_two_deployments_get_different_ports_and_one_gets_the_same_again() -> None:
    first = PortBlock.reserve("00000007")
    second = PortBlock.reserve("00000007")
    assert abs(first.first - second.first) >= BLOCK_SIZE
    first.close()
    again = PortBlock.reserve("00000007")
    assert again.first == first.first
    again.close()
    second.close()


def test_block_with_a_taken_port_is_passed_over() -> None:
    free = PortBlock.reserve("00000031")
    free.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free.first + 5))
        taken.listen()
        assert not is_free(free.first + 5)
        other = PortBlock.reserve("00000031")
        assert other.first != free.first
        other.close()
