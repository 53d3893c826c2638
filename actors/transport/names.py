"""The names of actors, their namespace, and how an actor of which a cluster has one is made.

Ray starts an actor anew whose process has ended, but not one that was killed without a restart or
whose constructor has failed; its name is free then, and the process that needs it makes another:
the gateways the timekeeper, the timekeeper the ledger.
"""

from __future__ import annotations

from typing import Any

NAMESPACE = "callboard"
LEDGER = "ledger"
# The names of the ledger's actors: one of them is the writer, another a standby, if there is one.
LEDGERS = (LEDGER, "ledger#1")
TIMEKEEPER = "timekeeper"
WORKFLOW_PREFIX = "workflow@"
# Concurrency group of methods that run in a thread of their own, and its number of threads.
LIVENESS = {"liveness": 1}


def workflow_actor(node_id: str, index: int, generation: str = "") -> str:
    """Return the name of one of a machine's `WorkflowActor`s, the address of its member.

    Args:
        node_id: Ray's hexadecimal id of the machine.
        index: 0 for the first actor of that machine.
        generation: of the upgrade that made it: while one goes on, the actors of before stand
            beside those that replace them. Empty: none has been made.
    """
    return f"{WORKFLOW_PREFIX}{node_id}#{index}" + (f"+{generation}" if generation else "")


def generation_of(address: str) -> str:
    """Return the generation of the upgrade that made a `WorkflowActor`, "" for none.

    Args:
        address: its name.
    """
    return address.partition("+")[2]


def ensure_actor(kind: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """Make an actor unless there is one of its name; blocks, and calling it again changes nothing.

    Args:
        kind: the actor's class.
        name: under which it is found.
        arguments: of its constructor.
        options: further ones of Ray, such as where it runs.

    Returns:
        its handle.
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
