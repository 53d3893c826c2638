"""Calls methods of actors by name, and serves these calls in the actors.

On the same machine an actor is called over its Unix socket, from another machine by a Ray call. A
replaced actor is looked up again. Only this module knows how a Ray call fails. Every batch call has
its own timeout, because Ray's timeouts for unreachable machines are longer. Without the GCS, Ray
reports no unreachable machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError

from actors.transport.names import NAMESPACE
from actors.transport.sockets import SocketCall, SocketServer, socket_path
from core.errors import ErrorCode, ServiceError
from core.settings import Settings

log = logging.getLogger("callboard.sockets")

# Longer than the slowest reply: a long poll takes 10 s, a batch with a slow database 12 s.
CALL_TIMEOUT_S: Final = 20.0
# Look-ups have their own threads, so a slow look-up does not delay the work in other threads.
# The threads start with the first look-up.
_LOOK_UP_THREADS: Final = ThreadPoolExecutor(4, "look-up")


def find_actor(name: str) -> Any:
    """Return the handle of a named actor. Blocks, up to a minute while the GCS is down.

    Raises:
        ConnectionError: this process is in no cluster. Ray's look-up would start a new cluster.
        ValueError: no actor has this name.
    """
    if not ray.is_initialized():
        raise ConnectionError(f"{name}: this process is in no cluster")
    return ray.get_actor(name, namespace=NAMESPACE)


class ActorCall:
    """Calls a method of a named actor by Ray.

    The actor's handle is cached until a call fails because the actor has ended. A new actor with
    the same name may have replaced it then.

    Args:
        name: the actor's name.
        method: the name of its method.
        find: looks up the actor's handle; called in a thread.
    """

    def __init__(self, name: str, method: str, find: Callable[[str], Any] = find_actor) -> None:
        self._name = name
        self._method = method
        self._find = find
        self._handle: Any = None
        self._looking: asyncio.Future[Any] | None = None

    async def __call__(self, *arguments: Any) -> Any:
        """Call the actor once. Errors of the look-up and of the call are raised unchanged."""
        try:
            self._handle = handle = self._handle or await self._look_up()
            return await getattr(handle, self._method).remote(*arguments)
        except RayActorError:
            self._handle = None
            raise

    async def _look_up(self) -> Any:
        """Look up the actor; concurrent callers share one look-up."""
        if self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.run_in_executor(_LOOK_UP_THREADS, self._find, self._name)
            self._looking.add_done_callback(self._end_look_up)
        # Shielded: if one caller is cancelled, the other callers still get the result.
        return await asyncio.shield(self._looking)

    def _end_look_up(self, looking: asyncio.Future[Any]) -> None:
        self._looking = None
        if not looking.cancelled():
            looking.exception()  # marks it as retrieved, even if every caller was cancelled


class BatchCall:
    """Sends batches to a method of a named actor, over its socket on this machine or by Ray.

    Args:
        settings: the deployment's settings.
        name: the actor's name.
        method: the name of its method.
        timeout_s: the timeout of a call, seconds.
    """

    def __init__(
        self, settings: Settings, name: str, method: str, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self._name = f"{name}.{method}"
        self._timeout_s = timeout_s
        by_ray = ActorCall(name, method)
        path = socket_path(settings.run_folder, name)
        self._socket = None if path is None else SocketCall(path, method, by_ray)
        self._call = self._socket or by_ray

    async def __call__(self, *arguments: Any) -> Any:
        """Call the actor once. After a `ConnectionError` or a `RayError` the outcome is unknown."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._call(*arguments)
        except TimeoutError:
            message = f"{self._name}: no reply within {self._timeout_s:g} s"
            raise ConnectionError(message) from None

    def close(self) -> None:
        """Close the connections."""
        if self._socket is not None:
            self._socket.close()


async def serve_batches(settings: Settings, name: str, methods: Mapping[str, Any]) -> SocketServer:
    """Serve methods of an actor over a socket, if its machine has a run folder; return the server.

    If that is not possible, callers use slower Ray calls.

    Args:
        settings: the deployment's settings.
        name: the actor's name.
        methods: the methods that may be called, by name.
    """
    server = SocketServer(methods)
    path = socket_path(settings.run_folder, name)
    if path is not None:
        try:
            await server.listen(path)
        except OSError as error:  # a machine without the run folder
            log.warning("no socket actor=%s reason=%s", name, error)
    return server


def is_unknown_outcome(error: BaseException) -> bool:
    """Say whether a failed call may have been applied, so that a retry needs the same key."""
    if isinstance(error, ServiceError):
        return error.code in (ErrorCode.LEDGER_UNAVAILABLE, ErrorCode.OVERLOADED)
    # ValueError: no actor has the name, which also happens while an actor is being replaced.
    return isinstance(error, RayError | ValueError | ConnectionError | OSError)
