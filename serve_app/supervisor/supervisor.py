"""Starts, supervises and ends the parts of a deployment on this machine: Ray, Postgres, the API.

Start order: end the processes of an earlier run; start Ray and Postgres at the same time; migrate
the schema; deploy the API. Postgres and Ray are child processes that end with this process, even if
it is killed by SIGKILL. All durable data is in Postgres, so when Ray ends, Ray is started again and
the API is deployed again. The head of a cluster also stores Ray's own state, so a restarted head
knows its machines and actors. A worker runs only Ray (decision cluster-and-releases). This file
knows processes, not the command line.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ledger.embedded.server import (
    EmbeddedPostgres,
    EmbeddedPostgresError,
    end_leftovers,
    last_lines,
)
from ledger.embedded.tethered import tethered_command
from serve_app.settings_from_env import LoadedSettings, child_environment, settings_as_environment
from serve_app.supervisor.deployment import Deployment, DeploymentError, PortBlock, is_free
from serve_app.supervisor.frozen_processes import CHECK_S, FrozenProcesses
from serve_app.supervisor.machines.preflight import check_machine, check_reachable
from serve_app.supervisor.processes import end_marked, process_name, wait_end
from serve_app.supervisor.ray_node import ALONE, Place, RayNode, restart_pause_s
from serve_app.supervisor.releases.release import Release, forget_release

ROOT = Path(__file__).resolve().parent.parent.parent
RAY_START_TIMEOUT_S = 120.0
_RAY_READY = "Ray runtime started"
# The default of a machine's first port in a cluster. It is fixed, because the machines must know
# each other's ports.
CLUSTER_PORTS_FROM = 12_000
_API_OFFSET = 10
_RETRY_PAUSES_S = (0.1, 0.5, 2.0, 5.0)
_STOP_GRACE_S = 1.0


class StartFailed(RuntimeError):
    """A part did not start; the message has a hint and the last lines of the part's log."""


class Supervisor:
    """Starts and supervises a deployment, or this machine's part of a cluster.

    Args:
        loaded: the deployment's settings.
        say: prints a line of progress.
        place: alone, or the machine's role in a cluster.
        ports_from: the machine's first port, if the machine belongs to a cluster.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        say: Callable[[str], None],
        place: Place = ALONE,
        *,
        ports_from: int = CLUSTER_PORTS_FROM,
    ) -> None:
        self._loaded = loaded
        self._settings = loaded.settings
        self._deployment = loaded.deployment
        self._say = say
        self._place = place
        self._ports_from = ports_from
        self._lock: int | None = None
        self._ports: PortBlock | None = None
        self._postgres: EmbeddedPostgres | None = None
        self._node: RayNode | None = None
        self._ray: subprocess.Popen[bytes] | None = None
        self._ray_log_from = 0
        self._vital: list[int] | None = None
        self._is_whole = False
        self._frozen = FrozenProcesses()
        self._variables: dict[str, str] = {}
        self._mark = f"{self._deployment.id}.{secrets.token_hex(4)}"
        self._release = Release.own()
        self.url = loaded.settings.url

    @property
    def ready(self) -> str:
        """The sentence that the command line prints when this machine has started."""
        if self._place.is_head:
            return f"callboard is ready at {self.url}"
        # On a worker the API is not ready yet: Serve starts its replica and HAProxy later.
        return f"this machine belongs to the cluster of {self._place.head}"

    def start(self) -> None:
        """Start all parts; return when the API answers, or on a worker when Ray has started.

        Raises:
            AlreadyRunning: another process supervises this deployment.
            DeploymentError, EmbeddedPostgresError, StartFailed: a part cannot start.
        """
        self._lock = self._deployment.lock()
        if self._place.is_cluster:
            check_machine(self._settings, self._place)
        settings = self._settings
        self._deployment.prepare(
            deployment_key=settings.deployment_key, ray_token=settings.ray_token
        )
        clear_leftovers(self._deployment, self._say)
        forget_release(self._deployment.home)
        self._deployment.make_run_folder()
        self._release = Release.own().by_plain_path(self._deployment.run_folder)
        if self._place.is_cluster:
            check_reachable(settings, self._place, self._say)
            self._ports = PortBlock.reserve_at(self._ports_from)
        else:
            self._ports = PortBlock.reserve(self._deployment.id)
        self._node = RayNode(self._deployment, self._ports, settings, self._place)
        self._choose_variables()
        self._start_ray()
        if self._postgres:
            self._postgres.start()
        if self._place.is_head:
            self._migrate()
        self._finish_start()
        if self._place.is_head:
            self._say(f"metrics for Prometheus: {self.url}/metrics")
        (self._deployment.url_file).write_text(f"{self.url}\n", encoding="utf-8")

    def watch(self) -> None:
        """Restart ended and frozen parts, until a signal handler raises an exception."""
        failures = 0
        while True:
            try:
                self._heal()
                failures = 0
            except (StartFailed, EmbeddedPostgresError, DeploymentError) as failure:
                pause_s = _RETRY_PAUSES_S[min(failures, len(_RETRY_PAUSES_S) - 1)]
                failures += 1
                self._say(f"{failure}\ntrying again in {pause_s} s")
                time.sleep(pause_s)

    def stop(self) -> None:
        """End all parts and remove the run folder; return when no process is left."""
        if self._lock is None:
            return
        end_marked(self._deployment.id, self._deployment.run_folder, grace_s=_STOP_GRACE_S)
        if self._postgres:
            self._postgres.stop()
        if self._ports:
            self._ports.close()
        if self._node:
            # Ray's state is needed only for a restart after a crash. After an orderly end, the next
            # start creates a new cluster.
            shutil.rmtree(self._deployment.gcs_folder, ignore_errors=True)
        shutil.rmtree(self._deployment.run_folder, ignore_errors=True)
        self._deployment.url_file.unlink(missing_ok=True)

    # --- parts ------------------------------------------------------------------------------------

    def _choose_variables(self) -> None:
        """Choose the database's address and the API's port. Set the child processes' variables."""
        changed = {"run_folder": str(self._deployment.run_folder)}
        if not self._settings.database_url:
            self._postgres = EmbeddedPostgres(
                self._deployment.home,
                self._deployment.run_folder,
                progress=self._say,
            )
            changed["database_url"] = self._postgres.database_url
        port = self._settings.port
        if not is_free(port, self._settings.host):
            if self._loaded.sources["port"] != "default" or self._place.is_cluster:
                raise DeploymentError(f"port {port} is in use: choose another with --port")
            assert self._ports is not None
            port = self._ports.first + _API_OFFSET
            self.url = self.url.replace(f":{self._settings.port}", f":{port}")
            changed["port"] = str(port)
        self._variables = settings_as_environment(self._loaded, **changed)

    def _ray_environment(self) -> dict[str, str]:
        assert self._node is not None
        return self._node.environment(self._mark, self._variables, self._release)

    def _start_ray(self) -> None:
        assert self._node is not None
        self._say("starting Ray")
        self._vital = None
        self._is_whole = False
        log = self._deployment.logs / "ray.log"
        self._ray_log_from = log.stat().st_size if log.exists() else 0
        environment = self._ray_environment()
        sentinel = [sys.executable, "-m", "serve_app.supervisor.sentinel"]
        sentinel += [str(os.getpid()), self._mark, str(self._deployment.run_folder)]
        subprocess.Popen(
            sentinel, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._ray = self._node.start(environment, self._release.python)

    def _wait_ray(self) -> None:
        assert self._ray is not None
        log = self._deployment.logs / "ray.log"
        deadline = time.monotonic() + RAY_START_TIMEOUT_S
        while True:
            with log.open("rb") as file:
                file.seek(self._ray_log_from)
                if _RAY_READY.encode() in file.read():
                    return
            if self._ray.poll() is not None or time.monotonic() > deadline:
                heads = (
                    ""
                    if self._place.is_head
                    else " check that ray_token, Ray and Python are those of the head,"
                )
                raise StartFailed(
                    f"Ray did not start:{heads} check memory and disk, and that the"
                    f" machine's own name resolves. The last lines of"
                    f" {log}:\n{last_lines(log)}"
                )
            time.sleep(0.02)

    def _finish_start(self, *options: str) -> None:
        """Deploy the API on the head, or wait for Ray on a worker.

        On a worker, Serve itself starts the replicas.
        """
        if self._place.is_head:
            self._deploy(*options)
        else:
            self._wait_ray()
        self._is_whole = True

    def _deploy(self, *options: str) -> None:
        """Wait until Ray has started, and deploy the API.

        `deploy.py` needs seconds to load its modules. So it is started while Ray starts, and waits
        for a line on its standard input.
        """
        command = ["serve_app.supervisor.deploy", "--after-input", *options]
        advice = "the API did not start; its log says why"
        with self._step(command, "deploy.log", self._ray_environment(), advice) as step:
            assert self._node is not None
            self._wait_ray()
            self._node.end_client_server()
            self._say("deploying the API")
            assert step.stdin is not None
            with suppress(BrokenPipeError):  # the program has failed already; its log says why
                step.stdin.write(b"the cluster is there\n")

    def _migrate(self) -> None:
        owner_url = self._settings.owner_url or self._settings.database_url
        if self._postgres:
            owner_url = self._postgres.owner_url
        advice = "the schema could not be brought up to date; the log says why"
        if not self._postgres:
            advice = (
                "the schema could not be brought up to date: does the database of"
                " CALLBOARD_DATABASE_URL answer, and may CALLBOARD_OWNER_URL change it?"
            )
        self._say("bringing the database's schema up to date")
        command = ["ledger.migrate", "--url", owner_url]
        environment = child_environment(self._release.environment())
        with self._step(command, "migrate.log", environment, advice):
            pass

    @contextmanager
    def _step(
        self, module: list[str], log_name: str, environment: dict[str, str], advice: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a module as a child process during the `with` block, then wait for its end.

        The child also ends when this process ends. Its output is written to its log, and its
        standard output is also printed.

        The child's working folder is the run folder. An actor first searches for modules in the
        working folder of the driver that created it. If that folder were a release's folder, all
        actors would be of this release, also after an upgrade.

        Args:
            module: the module and its arguments.
            log_name: the name of the log file.
            environment: the child's environment.
            advice: the beginning of the error message.

        Raises:
            StartFailed: the module's exit status is not 0.
        """
        log = self._deployment.logs / log_name
        command = tethered_command([self._release.python, "-m", *module], end_signal=signal.SIGKILL)
        with log.open("ab") as file, subprocess.Popen(
            command, env=environment, cwd=self._deployment.run_folder, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=file, start_new_session=True, bufsize=0,
        ) as step:  # fmt: skip
            try:
                yield step
                assert step.stdout is not None
                for line in step.stdout:
                    file.write(line)
                    file.flush()
                    self._say(line.decode("utf-8", "replace").rstrip())
            except BaseException:
                step.kill()
                raise
        if step.returncode != 0:
            raise StartFailed(
                f"{advice} (exit status {step.returncode}). The last lines of {log}:\n"
                f"{last_lines(log)}"
            )

    def _heal_postgres(self) -> None:
        if self._postgres and self._postgres.poll() is not None:
            self._say("Postgres has ended; starting it again")
            self._postgres.start()
            self._say("Postgres is back")

    def _heal(self) -> None:
        """Restart the parts that have ended or are frozen. If all run, wait until a part ends, at
        most `CHECK_S`."""
        assert self._ray is not None
        assert self._node is not None
        self._heal_postgres()
        # The processes are searched for once per start of Ray, because reading all of /proc takes
        # milliseconds and this method runs every two seconds.
        self._vital = self._vital or self._node.vital_processes()
        if reason := self._lost_ray():
            self._say(f"{reason}; starting it again")
            end_marked(self._deployment.id, self._deployment.run_folder, grace_s=0)
            self._restart_ray()
        if not self._is_whole:
            # A running application is not deployed again. An earlier attempt may have deployed it,
            # or replicas on other machines may have survived.
            self._finish_start("--keep-application")
            self._say(f"Ray is back, {self.ready}")
            return
        assert self._vital is not None
        watched = [self._ray.pid, *self._vital]
        if self._postgres and self._postgres.pid:
            watched.append(self._postgres.pid)
        wait_end(watched, CHECK_S)

    def _lost_ray(self) -> str:
        """Return the reason for which Ray must be started again; empty while Ray runs."""
        assert self._ray is not None
        if self._ray.poll() is not None or self._vital is None or wait_end(self._vital, 0):
            return "Ray has ended"
        names = [process_name(pid) for pid in self._frozen.frozen(self._vital)]
        return f"Ray is frozen ({', '.join(names)})" if names else ""

    def _restart_ray(self) -> None:
        release = Release.of_home(self._deployment.home)
        self._release = release.by_plain_path(self._deployment.run_folder)
        if not self._place.is_head:
            time.sleep(restart_pause_s(self._ray_environment()))
            check_reachable(self._settings, self._place, self._say)
        self._start_ray()


def clear_leftovers(deployment: Deployment, say: Callable[[str], None]) -> int:
    """End the processes of an earlier run of a deployment, and remove its run folder.

    The caller must hold the deployment's lock, or know that its holder has ended.

    Returns: the number of processes that `end_marked` has ended.
    """
    ended = end_marked(deployment.id, deployment.run_folder, grace_s=0)
    if ended:
        say(f"ended {ended} processes of an earlier run")
    end_leftovers(deployment.home / "postgres", say)
    shutil.rmtree(deployment.run_folder, ignore_errors=True)
    return ended
