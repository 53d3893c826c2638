"""Calls to actors by name, and what an actor does to be called; a replaced one is looked up again.

The only place that knows how a Ray call fails, and which carriers there are: the Unix socket of an
actor of this machine, TCP where the settings have it (`transport_host`), the Ray call. design.md
section 3 (`ActorUnavailableError`: outcome unknown, same key again). Decision 0205.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import ray
import ray.util
from ray.exceptions import RayActorError, RayError

from actors.transport.names import NAMESPACE
from actors.transport.sockets import (
    Carrier,
    SocketCall,
    SocketServer,
    UnixCarrier,
    socket_path,
)
from actors.transport.tcp import Credentials, TcpCarrier, TcpListener, TlsFiles
from core.errors import ErrorCode, ServiceError
from core.settings import OWN_ADDRESS, Settings
from core.trust.derived_keys import KeyPurpose, derived_keys

log = logging.getLogger("callboard.sockets")

# Of look-ups, which must not hold up what runs in a loop's own threads; none runs before the first.
_LOOK_UP_THREADS: Final = ThreadPoolExecutor(4, "look-up")


def find_actor(name: str) -> Any:
    """Return the handle of the actor of a name; blocks, for a minute when the GCS is away.

    Raises:
        ConnectionError: this process is in no cluster; the look-up would start one.
        ValueError: there is no such actor.
    """
    if not ray.is_initialized():
        raise ConnectionError(f"{name}: this process is in no cluster")
    return ray.get_actor(name, namespace=NAMESPACE)


class ActorCall:
    """Calls a method of the actor of a name, by Ray.

    Its handle is kept until a call fails: an actor of the same name may have replaced it.

    Args:
        name: the actor's.
        method: of the actor.
        find: looks the actor up, in a thread.
    """

    def __init__(self, name: str, method: str, find: Callable[[str], Any] = find_actor) -> None:
        self._name = name
        self._method = method
        self._find = find
        self._handle: Any = None
        self._looking: asyncio.Future[Any] | None = None

    async def __call__(self, *arguments: Any) -> Any:
        """Make one call; raises what the look-up and the call do."""
        try:
            self._handle = handle = self._handle or await self._look_up()
            return await getattr(handle, self._method).remote(*arguments)
        except RayActorError:
            self._handle = None
            raise

    async def _look_up(self) -> Any:
        """Look the actor up; all that wait for it share one look-up."""
        if self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.run_in_executor(_LOOK_UP_THREADS, self._find, self._name)
            self._looking.add_done_callback(self._end_look_up)
        # A caller that leaves leaves it to the others.
        return await asyncio.shield(self._looking)

    def _end_look_up(self, looking: asyncio.Future[Any]) -> None:
        self._looking = None
        if not looking.cancelled():
            looking.exception()  # marks it as retrieved, also when every caller has left


class BatchCall:
    """Sends batches to a method of a named actor, over a socket where there is one.

    Args:
        settings: the deployment's.
        name: the actor's.
        method: of the actor.
        endpoint: where it is known to listen for other machines; "": it is asked by a Ray call.
    """

    def __init__(self, settings: Settings, name: str, method: str, endpoint: str = "") -> None:
        by_ray = ActorCall(name, method)
        carriers: list[Carrier] = []
        path = socket_path(settings.run_folder, name)
        if path is not None:
            carriers.append(UnixCarrier(path))
        credentials = _credentials(settings)
        if credentials is not None:
            ask = _known(endpoint) if endpoint else ActorCall(name, "endpoint")
            carriers.append(TcpCarrier(ask, name, credentials))
        self._socket = SocketCall(carriers, method, by_ray) if carriers else None
        self._call = self._socket or by_ray

    async def __call__(self, *arguments: Any) -> Any:
        """Make one call; after a `ConnectionError` or a `RayError` its outcome is unknown."""
        return await self._call(*arguments)

    def close(self) -> None:
        """Close the connections."""
        if self._socket is not None:
            self._socket.close()


class BatchServer:
    """Lets an actor be called over sockets, as far as the settings and its machine allow.

    Args:
        settings: the deployment's.
        name: the actor's.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._server: SocketServer | None = None
        # Where other machines reach the actor, "host:port"; empty: by Ray calls only.
        self.endpoint = ""

    async def start(self, methods: Mapping[str, Any]) -> None:
        """Begin to listen; where that is not possible, the calls go by Ray: slower, not broken.

        Args:
            methods: what may be called, by name.
        """
        self._server = server = SocketServer(methods)
        path = socket_path(self._settings.run_folder, self._name)
        if path is not None:
            try:
                await server.listen(path)
            except OSError as error:  # a machine without the run folder
                log.warning("no socket actor=%s reason=%s", self._name, error)
        credentials = _credentials(self._settings)
        if credentials is not None:
            try:
                listener = TcpListener(server, self._name, credentials)
                self.endpoint = listener.start(
                    _own_host(self._settings), self._settings.transport_ports
                )
                server.add_listener(listener)
            except OSError as error:  # no free port, or files of TLS that cannot be read
                log.error("no TCP actor=%s reason=%s", self._name, error)

    async def close(self) -> None:
        """Stop; calls under way are cut off."""
        if self._server is not None:
            await self._server.close()


def _known(endpoint: str) -> Callable[[], Awaitable[str]]:
    async def ask() -> str:
        return endpoint

    return ask


def _credentials(settings: Settings) -> Credentials | None:
    """Return what connections to other machines need; None without them."""
    if not (settings.transport_host and settings.deployment_key):
        return None
    files = TlsFiles(
        settings.transport_tls_certificate, settings.transport_tls_key, settings.transport_tls_ca
    )
    keys = derived_keys(settings.deployment_keys, KeyPurpose.TRANSPORT)
    return Credentials(keys, files if files.certificate else None)


def _own_host(settings: Settings) -> str:
    if settings.transport_host == OWN_ADDRESS:
        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    return settings.transport_host


def is_unknown_outcome(error: BaseException) -> bool:
    """Whether a failed call may have been applied, so that a retry needs the same key."""
    if isinstance(error, ServiceError):
        return error.code in (ErrorCode.LEDGER_UNAVAILABLE, ErrorCode.OVERLOADED)
    # ValueError: no actor of that name, which is the case while it is being replaced.
    return isinstance(error, RayError | ValueError | ConnectionError | OSError)
