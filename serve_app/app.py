"""The Ray Serve application: the replicas of the API, and their number.

In `serve_app`, only this file and two programs of the supervisor (`deploy.py`, `upgrade.py`) import
Ray. `serve_app/api.py` handles a replica's requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy
from ray.serve.schema import LoggingConfig

from actors.cluster.owner_actors import cores_of_machines
from actors.cluster.runtime import this_machine
from actors.cluster.scaling.ray_machines import (
    API_RESOURCE,
    draining_machines,
    live_machines,
)
from actors.gateway.gateway import Gateway
from actors.process.metrics import start_loop_watchdog
from actors.process.startup import (
    collect_rarely,
    configure_logging,
    parse_settings_argument,
    settings_argument,
)
from actors.routing.peer_client import PeerClient
from core.settings import Settings
from core.shards.scaling import machines_with_replicas
from ledger.features.agent_live import LivenessStore
from ledger.features.nonces import NonceStore
from ledger.features.peers import PeerReader, PeerStore
from ledger.features.receipts import ReceiptStore
from ledger.features.webhooks import WebhookStore
from ledger.operational import OperationalStore
from ledger.replies import ReplyStore
from serve_app.api import Api, create_api
from serve_app.callers.admission import EVENT_STREAMS_MAX, Admission
from serve_app.callers.auth import Authenticator
from serve_app.callers.client_address import ClientAddresses
from serve_app.callers.credential_sources import sources_of
from serve_app.callers.limits import RateLimiter
from serve_app.http.whole_replies import serve_whole_replies
from serve_app.http.worker_thread import switch_threads_often
from serve_app.operations.agents.heartbeat_store import Heartbeats
from serve_app.operations.work.model_drafts import model_drafts_of
from serve_app.services import Services
from serve_app.settings_from_env import read_settings

# How long the reply to a request with an `Idempotency-Key` is stored, in seconds.
REPLY_KEPT_S: Final = 86_400

APPLICATION = "callboard"
# How long a lost machine still counts for the number of replicas. Serve must notice within this
# time that the machine's replicas have ended. Otherwise Serve might end replicas of a live machine
# to reduce the number.
REPLICAS_KEPT_S = 60.0
# The key in the policy's state for the times at which the machines were last seen, by the
# controller's monotonic clock.
_SEEN_S = "seenS"
# The share of `API_RESOURCE` that a replica takes. It is the smallest share that Ray supports, so
# that the resource never limits the number of replicas.
_SHARE_OF_API = 0.0001
# Serve replaces a replica after three failed health checks in a row. A check fails after 10 s by
# default. No step of a replica's event loop takes that long, even on a machine under full load.
FAILED_CHECKS = 3


class ApiDeployment:
    """One replica of the API.

    Args:
        values: the deployment's settings, by name.
    """

    async def __init__(self, values: Mapping[str, object]) -> None:  # type: ignore[misc]
        deployed = parse_settings_argument(values)
        cores = await asyncio.to_thread(cores_of_machines)
        settings = deployed.on_machine(cores[this_machine()])
        configure_logging(settings, "api")
        collect_rarely()
        self._watchdog = start_loop_watchdog("api", "api")
        switch_threads_often()
        gateway = await Gateway.connect(settings)
        self._services = Services(
            gateway,
            Authenticator(
                sources_of(gateway.reader, NonceStore(settings.database_url), settings), settings
            ),
            RateLimiter(
                settings,
                OperationalStore(settings.database_url).take_rate_block,
                replicas=settings.serve_replicas,
            ),
            Heartbeats(
                LivenessStore(settings.database_url),
                gateway.reader,
                settings.replica_requests_max,
                gateway.owners.refresh,
            ),
            ReplyStore(settings.database_url, kept_s=REPLY_KEPT_S),
            ReceiptStore(settings.database_url, gateway.reader),
            WebhookStore(settings.database_url),
            PeerStore(settings.database_url),
            PeerReader(gateway.reader),
            PeerClient(settings, gateway.reader),
            Admission(settings),
            ClientAddresses(settings.deployment_keys),
            model_drafts_of(settings),
            gateway.counters,
        )
        # Called here, because Serve starts the replica's HTTP server after this method.
        serve_whole_replies(self._services.event_tail.stop)

    def __serve_build_asgi_app__(self) -> Api:
        return create_api(self._services)


def build(settings: Settings) -> Any:
    """Return the Serve application of a deployment with these settings.

    Serve runs the same number of replicas on each machine. The number fits the machine with the
    fewest cores.
    """
    cores = min(cores_of_machines().values())
    settings = replace(settings, serve_replicas=settings.on_machine(cores).serve_replicas)
    check_s = settings.serve_silence_ms / FAILED_CHECKS / 1_000
    # No CPUs are reserved, because replicas mostly wait, and a machine with two cores must also run
    # the actors. `serve_app/callers/admission.py` limits the open requests of a replica and refuses
    # further requests. Serve's own limit (`max_ongoing_requests`) would let requests wait instead.
    # It is so high that it is never reached first, even if all event streams are open.
    deployment: Any = serve.deployment(
        serve.ingress()(ApiDeployment),
        name="api",
        **_replicas(settings),
        max_ongoing_requests=EVENT_STREAMS_MAX
        + max(settings.connections_max, 2 * settings.replica_requests_max),
        # With Serve's defaults, a frozen replica would be replaced only after two minutes.
        health_check_period_s=check_s / 2,
        health_check_timeout_s=check_s,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=5.0,
        # At level INFO, each request would make a log record that is not written.
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )
    return deployment.bind(settings_argument(settings))


def _replicas(settings: Settings) -> dict[str, Any]:
    each = settings.serve_replicas
    if settings.machines_max == 1:
        # When replicas are replaced, Serve starts the new ones first, so the API stays available.
        return {
            "num_replicas": each,
            "max_surge_percent": 100,
            "ray_actor_options": {"num_cpus": 0},
        }
    # Serve runs HAProxy on each machine that has a replica, so every machine gets replicas.
    policy = AutoscalingPolicy(  # type: ignore[no-untyped-call]
        policy_function=f"{__name__}:replicas_wanted"
    )
    scaling = AutoscalingConfig(
        min_replicas=each,
        initial_replicas=each,
        max_replicas=each * settings.machines_max,
        policy=policy,
        upscale_delay_s=0.0,
        downscale_delay_s=0.0,
    )
    return {
        "autoscaling_config": scaling,
        "max_replicas_per_node": each,
        "ray_actor_options": {"num_cpus": 0, "resources": {API_RESOURCE: _SHARE_OF_API}},
    }


def replicas_wanted(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Return the number of replicas for all machines, and the policy's new state.

    Serve's controller calls this function. A lost machine still counts for `REPLICAS_KEPT_S`. A
    machine that Ray drains does not count. Otherwise Serve would request another machine for the
    replicas of the drained machine.

    Args:
        context: the deployment's state; its lower bound is the number of replicas per machine.
    """
    seen_s = machines_with_replicas(
        context.policy_state.get(_SEEN_S, {}),
        live_machines(),
        draining_machines(),
        now_s=time.monotonic(),
        kept_s=REPLICAS_KEPT_S,
    )
    return max(1, len(seen_s)) * context.capacity_adjusted_min_replicas, {_SEEN_S: seen_s}


def build_from_environment(_arguments: dict[str, str]) -> Any:
    """Return the application with settings from the environment, for `serve deploy`."""
    return build(read_settings())
