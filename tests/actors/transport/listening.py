"""Actors that listen for batches, without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.transport.actor_calls import serve_batches
from actors.transport.sockets import SocketServer
from core.settings import build_settings


async def listening(
    folder: Path, actor: str, methods: Mapping[str, Any], **settings: object
) -> SocketServer:
    """Return a server of an actor's methods that listens in a run folder."""
    return await serve_batches(
        build_settings({"run_folder": str(folder), **settings}), actor, methods
    )
