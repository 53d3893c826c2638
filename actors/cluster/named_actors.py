"""Actors of which a cluster has one each: made where there is none, also after one died for good.

Ray starts an actor anew whose process has ended, but not one that was killed without a restart or
whose constructor has failed; its name is free then. Which of them needs another makes it: the
gateways the timekeeper, the timekeeper the ledger. design.md section 3 (Starting and owning).
"""

from __future__ import annotations

from typing import Any

from actors.cluster.names import NAMESPACE
from actors.process.arguments import settings_argument
from core.settings import Settings


def ensure_actor(kind: Any, name: str, settings: Settings) -> None:
    """Make an actor unless there is one of its name; blocks, and calling it again changes nothing.

    Args:
        kind: the actor's class, whose constructor takes the settings alone.
        name: under which it is found.
    """
    kind.options(
        name=name,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=1_000,
    ).remote(settings_argument(settings))
