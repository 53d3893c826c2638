"""The names and the namespace of the actors, and how a named actor is created.

Ray restarts an actor whose process has ended. Ray does not restart an actor that was ended
permanently, or whose constructor has failed. The name of such an actor is unused, and the process
that needs the actor creates a new one: gateways create the timekeeper, and the timekeeper creates
the ledger.
"""

from __future__ import annotations

from typing import Any

NAMESPACE = "callboard"
LEDGER = "ledger"
# The names of the ledger actors: one actor is the writer, and the other, if it exists, a standby.
LEDGERS = (LEDGER, "ledger#1")
TIMEKEEPER = "timekeeper"
WORKFLOW_PREFIX = "workflow@"
# Ray's concurrency group of methods that run in a separate thread: its name and thread count.
LIVENESS = {"liveness": 1}


def workflow_actor(node_id: str, index: int, generation: str = "") -> str:
    """Return the name of a `WorkflowActor` of a machine, which is the address of its member.

    Args:
        node_id: Ray's hexadecimal id of the machine.
        index: 0 for the first actor of that machine.
        generation: the generation of the upgrade that created the actor. During an upgrade, actors
            of the previous generation run beside their replacements. "": before the first upgrade.
    """
    return f"{WORKFLOW_PREFIX}{node_id}#{index}" + (f"+{generation}" if generation else "")


def generation_of(address: str) -> str:
    """Return the generation of the upgrade that created a `WorkflowActor`, "" for none.

    Args:
        address: the actor's name.
    """
    return address.partition("+")[2]


def ensure_actor(kind: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """Return the handle of a named actor; create the actor if it does not exist. Blocks.

    Args:
        kind: the actor's class.
        name: the actor's name.
        arguments: the arguments of its constructor.
        options: further Ray options, such as the scheduling strategy.
    """
    return kind.options(
        name=name,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=1_000,
        **options,
    ).remote(*arguments)
