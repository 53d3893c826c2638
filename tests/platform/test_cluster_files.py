"""`cluster.yaml`: what it ships, what it runs, and how the head reads it to start the workers."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from typing import Any

import pytest
import yaml

from core.settings import setting_names
from scripts.cluster_demo.hosts import PROGRAMS
from serve_app.supervisor.machines.launch import MachineFailed, read_cluster
from serve_app.supervisor.supervisor import CLUSTER_PORTS_FROM
from tests.platform.deployments import PACKAGES, ROOT

TEXT = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
CLUSTER: dict[str, Any] = yaml.safe_load(TEXT)
COMMANDS = [
    command
    for name in ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
    for command in CLUSTER[name]
]
MOUNTS: dict[str, str] = CLUSTER["file_mounts"]
ON_PATH = ROOT / "scripts" / "on_path"


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_one_chain_that_ends_at_its_first_failure(command: str) -> None:
    assert subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode == 0
    assert ";" not in command
    assert "\n" not in command.strip()


@pytest.mark.parametrize("script", ["profile", "ray"])
def test_script_of_login_shells_parses(script: str) -> None:
    assert subprocess.run(["sh", "-n", ON_PATH / script], capture_output=True).returncode == 0


def test_ray_of_login_shells_may_be_run_and_asks_the_dashboard_of_the_cluster() -> None:
    assert (ON_PATH / "ray").stat().st_mode & stat.S_IXUSR
    address = f"RAY_DASHBOARD_ADDRESS=http://127.0.0.1:{CLUSTER_PORTS_FROM + 1}"
    assert address in (ON_PATH / "profile").read_text(encoding="utf-8")


def test_everything_that_the_machines_need_is_shipped() -> None:
    shipped = {target.removeprefix("~/callboard/") for target in MOUNTS}
    assert set(PACKAGES) < shipped
    assert {".ci", "scripts", "packaging", "requirements.lock", "pyproject.toml"} < shipped
    sources = [source for source in MOUNTS.values() if source != "callboard.toml"]
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_secrets_file_names_real_settings_and_is_not_in_the_repository() -> None:
    head = TEXT.split("cluster_name:")[0]
    named = re.findall(r"^# +(\w+) += ", head, re.M)
    assert {"database_url", "owner_url", "deployment_key", "ray_token"} <= set(named)
    assert set(named) <= set(setting_names())
    ignored = subprocess.run(["git", "check-ignore", "-q", "callboard.toml"], cwd=ROOT)
    assert ignored.returncode == 0


def test_head_reads_the_configuration_as_ray_leaves_it() -> None:
    """Ray merges common commands into the workers', rewrites the key's path, adds its own files."""
    left = dict(CLUSTER)
    left["auth"] = {**CLUSTER["auth"], "ssh_private_key": "~/ray_bootstrap_key.pem"}
    left["file_mounts"] = {**MOUNTS, "~/ray_bootstrap_key.pem": "~/ray_bootstrap_key.pem"}
    left["worker_setup_commands"] = left.pop("setup_commands")
    cluster = read_cluster(yaml.safe_dump(left))
    assert cluster.head == CLUSTER["provider"]["head_ip"]
    assert cluster.workers == tuple(CLUSTER["provider"]["worker_ips"])
    assert cluster.ssh_key == "~/ray_bootstrap_key.pem"
    assert set(cluster.mounts) == set(MOUNTS)
    assert list(cluster.setup) == CLUSTER["setup_commands"]
    assert "callboard join" in cluster.start[-1]
    assert "callboard down" not in cluster.start[-1]


def test_configuration_without_a_member_is_refused_by_its_name() -> None:
    with pytest.raises(MachineFailed, match="the cluster's configuration has no 'auth'"):
        read_cluster("provider: {head_ip: a, worker_ips: []}")


def test_ssh_key_stands_in_one_place() -> None:
    assert TEXT.count(CLUSTER["auth"]["ssh_private_key"]) == 1
    assert [command for command in COMMANDS if ".ssh" in command or ".pem" in command] == []


@pytest.mark.parametrize(("ci", "status"), [({}, 0), ({"CI": "false"}, 0), ({"CI": "true"}, 1)])
def test_where_hosts_cannot_be_made_the_smoke_is_skipped_but_fails_in_continuous_integration(
    ci: dict[str, str], status: int
) -> None:
    command = [sys.executable, "-m", "scripts.cluster_demo", "--smoke"]
    environment = {"PATH": "/nowhere", **ci}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith("SKIPPED: ")


def test_continuous_integration_ends_with_a_cluster() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-2:] == [".ci/cluster_programs", "exec make cluster-smoke"]
    programs = (ROOT / ".ci" / "cluster_programs").read_text(encoding="utf-8")
    assert [name for name in PROGRAMS if f" {name}:" not in programs] == []
