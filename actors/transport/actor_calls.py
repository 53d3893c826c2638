"""Calls to actors by name, and what an actor does to be called; a replaced one is looked up again.

The only place that knows how a Ray call fails, and how an actor is reached: by its Unix socket on
the same machine, by a Ray call from another one. Every batch call has a deadline: Ray reports a
machine that was cut off only after its own timeouts, and not at all without the GCS.
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

# Longer than the longest answer: a poll takes 10 s, a batch that is slow in the database 12 s.
CALL_TIMEOUT_S: Final = 20.0
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
    """Sends batches to a method of a named actor: over its socket if it has one here, else by Ray.

    Args:
        settings: the deployment's.
        name: the actor's.
        method: of the actor.
        timeout_s: of a call.
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
        """Make one call; after a `ConnectionError` or a `RayError` its outcome is unknown."""
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


class BatchServer:
    """Lets an actor be called over a socket, where its machine has a run folder.

    Args:
        settings: the deployment's.
        name: the actor's.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._server: SocketServer | None = None

    async def start(self, methods: Mapping[str, Any]) -> None:
        """Begin to listen; where that is not possible, the calls go by Ray: slower, not broken.

        Args:
            methods: what may be called, by name.
        """
        self._server = SocketServer(methods)
        path = socket_path(self._settings.run_folder, self._name)
        if path is not None:
            try:
                await self._server.listen(path)
            except OSError as error:  # a machine without the run folder
                log.warning("no socket actor=%s reason=%s", self._name, error)

    async def close(self) -> None:
        """Stop; calls under way are cut off."""
        if self._server is not None:
            await self._server.close()


def is_unknown_outcome(error: BaseException) -> bool:
    """Whether a failed call may have been applied, so that a retry needs the same key."""
    if isinstance(error, ServiceError):
        return error.code in (ErrorCode.LEDGER_UNAVAILABLE, ErrorCode.OVERLOADED)
    # ValueError: no actor of that name, which is the case while it is being replaced.
    return isinstance(error, RayError | ValueError | ConnectionError | OSError)
