"""Deploys the API onto a running Ray cluster: `python -m serve_app.supervisor.deploy`.

The supervisor runs this program at every start of Ray. If the API already runs, the program
replaces its replicas, unless the option `--keep-application` is given. The program prints its
progress. Its exit status is 0 when the service answers, 2 for invalid settings, else 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.schema import ApplicationStatus

from actors.cluster.runtime import ensure_runtime, own_environment
from actors.gateway.gateway import Gateway
from actors.transport.names import NAMESPACE
from core.settings import Settings, SettingsError
from serve_app.app import APPLICATION, build
from serve_app.settings_from_env import read_settings
from serve_app.supervisor.admin_key import FILE, admin_key_command, prepared_key
from serve_app.supervisor.haproxy_config import serve_host
from serve_app.supervisor.machines.api_health import wait_api
from serve_app.supervisor.processes import saying

READY_TIMEOUT_S = 120.0
START_ATTEMPTS = 5
AFTER_INPUT = "--after-input"
KEEP_APPLICATION = "--keep-application"


def main() -> int:
    """Deploy the API, wait until it answers and print its address; return the exit status."""
    try:
        settings = read_settings()
    except SettingsError as defect:
        print(f"callboard: {defect}", file=sys.stderr)
        return 2
    if AFTER_INPUT in sys.argv[1:]:
        # This program's modules take seconds to load, so the supervisor starts it while Ray
        # starts. A line on standard input says that Ray has started.
        sys.stdin.readline()
    say = saying()
    is_kept = KEEP_APPLICATION in sys.argv[1:]
    ray.init(
        address="auto", namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING,
        # After an upgrade, Ray on another machine may still have the environment of the previous
        # release.
        runtime_env=own_environment() if settings.generation else None,
    )  # fmt: skip
    say("starting the actors and the API")
    # The replicas would start the actors too. Here the actors start at the same time as Serve.
    ensure_runtime(settings)
    _start_serve(settings, say)
    # `serve.run` replaces all replicas, also the replicas on machines that were not restarted.
    if not (is_kept and _is_running()):
        serve.run(build(settings), name=APPLICATION, route_prefix="/", blocking=False)
    missing = wait_api(settings.local_url, READY_TIMEOUT_S, say)
    if missing:
        print(f"the API is not healthy after {READY_TIMEOUT_S:.0f} s: {missing}", file=sys.stderr)
        return 1
    if settings.home:
        asyncio.run(_store_admin_key(settings, Path(settings.home)))
    say(f"the API answers at {settings.url}")
    return 0


def _start_serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Start Serve's controller and proxies.

    On a busy machine, the controller may replace a proxy that starts slowly. Then the call of
    `serve.start` that waits for this proxy fails. The call is repeated to wait for the next proxy.
    """
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            serve.start(
                proxy_location="EveryNode",
                http_options={"host": serve_host(settings), "port": settings.port},
            )
            return
        except RayActorError:
            if attempt == START_ATTEMPTS:
                raise
            say("a proxy was replaced while it started, waiting for the next one")


def _is_running() -> bool:
    found = serve.status().applications.get(APPLICATION)
    return found is not None and found.status in (
        ApplicationStatus.RUNNING,
        ApplicationStatus.DEPLOYING,
    )


async def _store_admin_key(settings: Settings, home: Path) -> None:
    gateway = await Gateway.connect(settings)
    try:
        await gateway.commit(admin_key_command(prepared_key(home)))
    finally:
        await gateway.close()
    print(f"admin key: {home / FILE}", flush=True)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # `sys.exit` would first disconnect from Ray, and the supervisor would wait a second for it. Ray
    # notices the end of a driver without a disconnect.
    os._exit(status)
