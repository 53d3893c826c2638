"""The Ray processes of a machine: their command line, their environment, the processes to watch.

This file runs `ray start` as a program, and does not import Ray. Every port and path for which Ray
or Serve has a default is set, so that several deployments can run on a machine. Serve's fast path
is enabled: HAProxy forwards requests directly to the replicas, which have their own ports. A
machine stands alone (`callboard up`), or belongs to a cluster as its head or as a worker
(`callboard join`). Decision cluster-and-releases.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from core.settings import MIB, Settings
from ledger.embedded.tethered import tethered_command
from serve_app.settings_from_env import (
    AUTOSCALERS_MACHINE,
    DEPLOYMENT_MARK,
    child_environment,
    load_settings,
)
from serve_app.supervisor.deployment import Deployment, PortBlock
from serve_app.supervisor.haproxy_config import connections_possible, write_haproxy_config
from serve_app.supervisor.processes import command_of, marked_processes, process_name, send
from serve_app.supervisor.releases.release import Release

# The size of Ray's shared memory for objects.
OBJECT_STORE_BYTES: Final = 128 * MIB

# Offsets in the deployment's block of ports.
_GCS, _DASHBOARD, _AGENT, _CLIENT, _METRICS, _PROXY_STATS, _PROXY_METRICS = range(7)
_FALLBACK_HTTP, _FALLBACK_GRPC = 7, 8
_HTTP_FROM, _HTTP_TO = 20, 59
_GRPC_FROM, _GRPC_TO = 60, 99
# An address on which the dashboard's server cannot listen, reserved for documentation (RFC 5737).
# `ray start` has no option to disable that server, but continues if the server cannot listen.
# Decision cluster-and-releases.
_NOWHERE = "192.0.2.1"
_LOOPBACK = "127.0.0.1"
_CLIENT_SERVER = "ray.util.client.server"
# The kernel cuts a process name after 15 characters.
_VITAL_HEAD, _VITAL_WORKER = frozenset({"gcs_server", "raylet"}), frozenset({"raylet"})


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a machine: alone, or in a cluster as the head or as a worker.

    Attributes:
        node_address: the machine's own address, to which other machines connect.
        head: `host:port` of the cluster's head; empty if this machine is the head.
        is_cluster: whether the machine belongs to a cluster.
    """

    node_address: str = _LOOPBACK
    head: str = ""
    is_cluster: bool = False

    @property
    def is_head(self) -> bool:
        return not self.head


ALONE = Place()
# How long a worker waits before it starts Ray again on a machine of an autoscaler. The autoscaler
# checks every 5 s by default, and removes a machine on which Ray has ended.
_TAKEN_BACK_S = 30.0


def restart_pause_s(environment: Mapping[str, str]) -> float:
    """Return the seconds that a worker waits before it starts Ray again.

    Ray on a machine of an autoscaler may have ended because the machine was drained. If Ray were
    started again at once, the cluster would have more machines than the autoscaler wants. Decision
    cluster-and-releases.

    Args:
        environment: the environment of the machine's Ray.
    """
    return _TAKEN_BACK_S if environment.get(AUTOSCALERS_MACHINE) else 0.0


class RayNode:
    """The Ray processes of one machine.

    Args:
        deployment: the deployment, whose folders are used.
        ports: the deployment's block of ports.
        settings: the deployment's settings.
        place: the machine's place.
    """

    def __init__(
        self, deployment: Deployment, ports: PortBlock, settings: Settings, place: Place
    ) -> None:
        self._deployment = deployment
        self._ports = ports
        self._settings = settings
        self._place = place
        self._vital = _VITAL_HEAD if place.is_head else _VITAL_WORKER

    @property
    def address(self) -> str:
        """Return the address at which drivers on this machine connect to the cluster."""
        return self._place.head or f"{self._place.node_address}:{self._ports.first + _GCS}"

    def environment(
        self, mark: str, settings_variables: dict[str, str], release: Release
    ) -> dict[str, str]:
        """Return the environment of Ray's processes on this machine and of `deploy.py`.

        Args:
            mark: the mark by which the processes of this run are found.
            settings_variables: the variables from which the processes read their settings.
            release: the release whose packages the processes import.
        """
        ray = {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._deployment.ray_token_file),
            "RAY_TMPDIR": str(self._deployment.run_folder / "ray"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            # By default, Ray sets the niceness of a worker to 15 only after its imports. So a
            # starting worker would take the cores from the running workers for a second.
            "RAY_worker_niceness": "0",
            # Only the dashboard's pages, which are not used, would read the events of tasks.
            "RAY_task_events_report_interval_ms": "0",
        }
        if self._place.is_cluster:
            ray |= self._cluster_environment()
        own = {DEPLOYMENT_MARK: mark} | settings_variables | release.environment()
        return child_environment(self._fast_path() | ray | own)

    def _cluster_environment(self) -> dict[str, str]:
        variables = {
            # By default a raylet and all its processes end when the head is unreachable for a
            # minute. A restart of the head on a busy machine may take longer.
            "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
            # Ray considers a machine lost after five failed checks, which take 15 s at the default
            # period.
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "3000",
            # Each HAProxy sends requests to the replicas of all machines. By default it still sends
            # requests to a lost machine for up to 15 s: 5 s for each of two checks, and 5 s for a
            # connection. Three checks must fail in a row, because a replica on a busy machine may
            # miss one check.
            "RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S": "1",
            "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
            "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL": "3",
        }
        if self._place.is_head:
            # With this store, a restarted head still knows the machines and the detached actors.
            # Decision cluster-and-releases.
            variables["RAY_gcs_storage"] = "rocksdb"
            variables["RAY_gcs_storage_path"] = str(self._deployment.gcs_folder)
        return variables

    def _fast_path(self) -> dict[str, str]:
        ports = self._ports
        # Serve inserts the node's id (56 digits) between folder and name. The path of a socket is
        # limited, so folder and name must be short.
        proxy = self._deployment.run_folder / "h"
        return {
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(proxy / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(proxy / "a"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(proxy),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(proxy / "server-state"),
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(proxy / "m"),
            # With these metrics HAProxy logs each request, and a Python process counts the lines.
            # That takes as much CPU as HAProxy itself, for metrics that nothing reads. Decision
            # cluster-and-releases.
            "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
            "RAY_SERVE_HAPROXY_STATS_PORT": str(ports.first + _PROXY_STATS),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports.first + _PROXY_METRICS),
            # HAProxy's fallback is a proxy in Python, which listens with SO_REUSEPORT. If two
            # deployments used the default port, they would get each other's requests.
            "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.first + _FALLBACK_HTTP),
            "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports.first + _FALLBACK_GRPC),
            # Our script, which adds the lines of `haproxy_config.py` to the configuration of Serve.
            "RAY_SERVE_HAPROXY_BINARY_PATH": str(proxy / "haproxy.sh"),
            "RAY_SERVE_HAPROXY_MAXCONN": str(connections_possible(self._settings.connections_max)),
            # By default the HTTP server of a replica would trust any client's X-Forwarded-For.
            "FORWARDED_ALLOW_IPS": "none",
            "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, os.cpu_count() or 1)),
            "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "5",
            # No process listens at this path, so HAProxy's log lines are dropped instead of being
            # written to the machine's syslog.
            "RAY_SERVE_HAPROXY_LOG_TARGET": str(proxy / "log.sock"),
            "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports.first + _HTTP_FROM),
            "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports.first + _HTTP_TO),
            "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(ports.first + _GRPC_FROM),
            "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(ports.first + _GRPC_TO),
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
            # On a busy machine, the start of a proxy takes longer than the default of 5 s.
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
            # A proxy is replaced after three failed checks, which takes 30 s at the default period.
            "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
            # By default the controller checks ten times a second, which takes a fifth of the CPU
            # time of an idle deployment.
            "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
        }

    def start(self, environment: dict[str, str], python: str) -> subprocess.Popen[bytes]:
        """Start `ray start --block` as a child that ends with this process.

        Its output goes to `logs/ray.log`. Earlier processes of the deployment must have ended,
        because they use the same ports.

        Args:
            environment: the result of the method `environment`.
            python: the interpreter of the Python environment in which Ray is installed.
        """
        deployment = self._deployment
        # The keys are read again: the first start may have created the key file, or a rotation may
        # have changed it.
        keys = load_settings(environment=environment).settings.deployment_keys
        write_haproxy_config(deployment.run_folder / "h", self._settings, keys)
        session = deployment.run_folder / "ray"
        session.mkdir(exist_ok=True)
        # The `ray` script is in the same folder as the interpreter.
        command = [python, str(Path(python).parent / "ray"), "start"]
        command += self._head_arguments() if self._place.is_head else [f"--address={self.address}"]
        command += ["--block", f"--node-ip-address={self._place.node_address}"]
        command += [f"--dashboard-agent-listen-port={self._ports.first + _AGENT}"]
        command += [f"--metrics-export-port={self._ports.first + _METRICS}"]
        # 0: the kernel assigns the ports, always above the blocks of `deployment.PortBlock`.
        command += ["--min-worker-port=0", "--max-worker-port=0", "--include-log-monitor=false"]
        command += [f"--object-store-memory={OBJECT_STORE_BYTES}"]
        command += [f"--temp-dir={session}", "--disable-usage-stats", "--log-color=false"]
        # Custom resources that count machines and limit replicas per machine:
        # actors/cluster/scaling/ray_machines.py.
        command.append('--resources={"callboard_machine": 1, "callboard_api": 1}')
        if self._settings.ray_cpus:
            command.append(f"--num-cpus={self._settings.ray_cpus}")
        with (deployment.logs / "ray.log").open("ab") as log:
            return subprocess.Popen(
                tethered_command(command, end_signal=signal.SIGKILL),
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=deployment.run_folder, start_new_session=True,
            )  # fmt: skip

    def _head_arguments(self) -> list[str]:
        first = self._ports.first
        # `serve deploy` and `serve status` use the dashboard. Only a cluster needs these commands.
        host, is_included = (_LOOPBACK, "true") if self._place.is_cluster else (_NOWHERE, "false")
        arguments = ["--head", f"--port={first + _GCS}", f"--include-dashboard={is_included}"]
        arguments += [f"--dashboard-host={host}", f"--dashboard-port={first + _DASHBOARD}"]
        return [*arguments, f"--ray-client-server-port={first + _CLIENT}", "--no-monitor"]

    def end_client_server(self) -> None:
        """End the server for drivers on other machines, which `ray start` always starts.

        `ray start` continues when this server ends by SIGTERM.
        """
        pids = marked_processes(self._deployment.id)
        send([pid for pid in pids if _CLIENT_SERVER in command_of(pid)], signal.SIGTERM)

    def vital_processes(self) -> list[int] | None:
        """Return the ids of the processes that Ray on this machine needs; None unless all run.

        They are watched because `ray start` does not notice the end of each of them.
        """
        pids = marked_processes(self._deployment.id)
        vital = [pid for pid in pids if process_name(pid) in self._vital]
        return vital if len(vital) == len(self._vital) else None
