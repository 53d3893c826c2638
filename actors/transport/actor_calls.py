"""Calls to actors by name; a replaced actor is looked up again.

The only place that knows how a Ray call fails. design.md section 3 (`ActorUnavailableError`:
outcome unknown, same key again).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from actors.transport.names import NAMESPACE
from actors.transport.sockets import SocketCall, socket_path
from core.errors import ErrorCode, ServiceError


def actor_call(name: str, method: str) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function that calls a method of the actor of that name.

    The handle is cached until a call fails: an actor of the same name may have replaced it.
    """
    handle: Any = None

    async def call(*arguments: Any) -> Any:
        nonlocal handle
        if not ray.is_initialized():
            # The look-up would start a cluster of its own.
            raise ConnectionError(f"{name}: this process is in no cluster")
        try:
            if handle is None:
                handle = ray.get_actor(name, namespace=NAMESPACE)
            return await getattr(handle, method).remote(*arguments)
        except RayActorError:
            handle = None
            raise

    return call


class BatchCall:
    """Sends batches to a method of a named actor, over its socket if it runs on this machine.

    Args:
        run_folder: the deployment's folder of sockets; empty: no sockets.
    """

    def __init__(self, run_folder: str, name: str, method: str) -> None:
        by_ray = actor_call(name, method)
        path = socket_path(run_folder, name)
        self._socket = None if path is None else SocketCall(path, method, by_ray)
        self._call = self._socket or by_ray

    async def __call__(self, *arguments: Any) -> Any:
        """Make one call; after a `ConnectionError` or a `RayError` its outcome is unknown."""
        return await self._call(*arguments)

    def close(self) -> None:
        """Close the connections."""
        if self._socket is not None:
            self._socket.close()


def is_unknown_outcome(error: BaseException) -> bool:
    """Whether a failed call may have been applied, so that a retry needs the same key."""
    if isinstance(error, ServiceError):
        return error.code in (ErrorCode.LEDGER_UNAVAILABLE, ErrorCode.OVERLOADED)
    # ValueError: no actor of that name, which is the case while it is being replaced.
    return isinstance(error, RayError | ValueError | ConnectionError | OSError)
