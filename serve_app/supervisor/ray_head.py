"""The Ray head of a local deployment: its command line, its environment, what of it to watch.

`ray start` is a program like any other here; this file does not import Ray. Every port and path
that Ray or Serve would take by default is set, so that deployments run side by side (design.md
section 4). Serve's fast path, HAProxy in front of replicas that listen themselves, is switched on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from core.settings import MIB, Settings
from ledger.embedded.tethered import tethered_command
from serve_app.settings_from_env import DEPLOYMENT_MARK, child_environment
from serve_app.supervisor.deployment import Deployment, PortBlock
from serve_app.supervisor.front import connections_possible, write_front
from serve_app.supervisor.processes import command_of, marked_processes, process_name, send

# Offsets in the deployment's block of ports.
_GCS, _DASHBOARD, _AGENT, _CLIENT, _METRICS, _PROXY_STATS, _PROXY_METRICS = range(7)
_FALLBACK_HTTP, _FALLBACK_GRPC = 7, 8
_HTTP_FROM, _HTTP_TO = 20, 59
_GRPC_FROM, _GRPC_TO = 60, 99
# Where the dashboard's server cannot listen: `ray start` then goes on without it, and no option
# leaves it out. An address that is kept for documentation (RFC 5737). Decision 0192.
_NOWHERE = "192.0.2.1"
_CLIENT_SERVER = "ray.util.client.server"
# The kernel cuts a process name after 15 characters.
_VITAL = {"gcs_server", "raylet"}
VITAL_COUNT = len(_VITAL)


def ray_address(ports: PortBlock) -> str:
    """Return the address under which drivers of this machine join the cluster."""
    return f"127.0.0.1:{ports.first + _GCS}"


def ray_environment(
    deployment: Deployment,
    ports: PortBlock,
    mark: str,
    settings: Settings,
    settings_variables: dict[str, str],
) -> dict[str, str]:
    """Return the environment of the head, of every worker under it, and of the deploying driver.

    Args:
        deployment: whose folders are used.
        ports: its block.
        mark: by which the processes of this run are found.
        settings: the deployment's.
        settings_variables: CALLBOARD_* from which workers build their settings.
    """
    # Serve adds the node's id, 56 digits, between folder and name: only short ones fit a socket.
    proxy = deployment.run_folder / "h"
    fast_path = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(proxy / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(proxy / "a"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(proxy),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(proxy / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(proxy / "m"),
        # For each request HAProxy would write a line, which a process in Python counts: as much
        # CPU as HAProxy itself, for metrics that nothing reads. Decision 0192.
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports.first + _PROXY_STATS),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports.first + _PROXY_METRICS),
        # HAProxy falls back to a proxy in Python. It listens with SO_REUSEPORT: on its default port
        # two deployments would answer each other's requests.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.first + _FALLBACK_HTTP),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports.first + _FALLBACK_GRPC),
        # Ours: it puts the limits of the front into the configuration that Serve writes.
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(proxy / "haproxy.sh"),
        "RAY_SERVE_HAPROXY_MAXCONN": str(connections_possible(settings.connections_max)),
        # The HTTP server of a replica would else believe any client's X-Forwarded-For.
        "FORWARDED_ALLOW_IPS": "none",
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, os.cpu_count() or 1)),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "5",
        # No process listens at this path: HAProxy then logs nowhere, not into the machine's syslog.
        "RAY_SERVE_HAPROXY_LOG_TARGET": str(proxy / "log.sock"),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports.first + _HTTP_FROM),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports.first + _HTTP_TO),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(ports.first + _GRPC_FROM),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(ports.first + _GRPC_TO),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        # Five seconds are not enough for a proxy to start on a machine that is busy otherwise.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        # Three failed checks replace a proxy: at the default period the API is away for 30 s.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        # The controller looks ten times a second by default, which is a fifth of what an idle
        # deployment costs.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    }
    ray = {
        "RAY_ADDRESS": ray_address(ports),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(deployment.ray_token_file),
        "RAY_TMPDIR": str(deployment.run_folder / "ray"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        # Nothing reads the events of tasks: the dashboard would.
        "RAY_task_events_report_interval_ms": "0",
        # The module search path of `python -m` is the project; workers start elsewhere.
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parent.parent.parent)]),
    }
    return child_environment(fast_path | ray | {DEPLOYMENT_MARK: mark} | settings_variables)


def start_head(
    deployment: Deployment, ports: PortBlock, settings: Settings, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start `ray start --head --block` as a child that ends with this process.

    Its output goes to `logs/ray.log`. Earlier processes of the deployment must be gone: the ports
    are the same ones.
    """
    # The first start has made the key's file after the settings were read.
    key = settings.deployment_key or deployment.deployment_key_file.read_text("ascii").strip()
    write_front(deployment.run_folder / "h", settings, bytes.fromhex(key))
    session = deployment.run_folder / "ray"
    session.mkdir(exist_ok=True)
    # The `ray` script of this very environment, found beside its interpreter.
    command = [sys.executable, str(Path(sys.executable).parent / "ray"), "start", "--head"]
    command += ["--block", "--node-ip-address=127.0.0.1", f"--port={ports.first + _GCS}"]
    command += [f"--dashboard-host={_NOWHERE}", f"--dashboard-port={ports.first + _DASHBOARD}"]
    command += [f"--dashboard-agent-listen-port={ports.first + _AGENT}"]
    command += [f"--ray-client-server-port={ports.first + _CLIENT}"]
    command += [f"--metrics-export-port={ports.first + _METRICS}"]
    # 0: the kernel chooses, always above the blocks of `deployment.PortBlock`.
    command += ["--min-worker-port=0", "--max-worker-port=0"]
    command += ["--include-dashboard=false", "--include-log-monitor=false", "--no-monitor"]
    command += [f"--object-store-memory={settings.object_store_mib * MIB}"]
    command += [f"--temp-dir={session}", "--disable-usage-stats", "--log-color=false"]
    if settings.ray_cpus:
        command.append(f"--num-cpus={settings.ray_cpus}")
    with (deployment.logs / "ray.log").open("ab") as log:
        return subprocess.Popen(
            tethered_command(command, end_signal=signal.SIGKILL),
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=deployment.run_folder, start_new_session=True,
        )  # fmt: skip


def end_client_server(deployment: Deployment) -> None:
    """End the server for drivers of other machines, which `ray start` cannot be told to leave out.

    To `ray start` an end by SIGTERM is an ordinary one.
    """
    pids = marked_processes(deployment.id)
    send([pid for pid in pids if _CLIENT_SERVER in command_of(pid)], signal.SIGTERM)


def vital_processes(deployment: Deployment) -> list[int]:
    """Return the processes without which the cluster is dead; `ray start` overlooks some ends."""
    return [pid for pid in marked_processes(deployment.id) if process_name(pid) in _VITAL]
