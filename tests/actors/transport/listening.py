"""Actors that listen for batches, without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.transport.actor_calls import BatchServer
from core.settings import build_settings


async def listening(
    folder: Path, actor: str, methods: Mapping[str, Any], **settings: object
) -> BatchServer:
    """Return a server of an actor's methods that listens in a run folder."""
    server = BatchServer(build_settings({"run_folder": str(folder), **settings}), actor)
    await server.start(methods)
    return server
