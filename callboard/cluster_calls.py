"""Requests about the cluster, as data like those of `calls.py`: its members, draining a machine.

Spec: decision cluster-and-releases.
"""

from __future__ import annotations

from callboard.calls import Call, Steps, _get, _keyed, _one, _segment


def cluster() -> Steps:
    """Read the members of the cluster and what they hold; for administrators."""
    return _get("/v1/cluster")


def drain_machine(machine: str) -> Steps:
    """Let a machine give its work to others; it stays drained until it is resumed.

    Args:
        machine: its id, or at least six characters with which that one alone begins.
    """
    return _changed(machine, "drain")


def resume_machine(machine: str) -> Steps:
    """Let a machine that was drained take work again; `machine` as for draining."""
    return _changed(machine, "resume")


def _changed(machine: str, how: str) -> Steps:
    path = f"/v1/cluster/machines/{_segment(machine)}/{how}"
    return _one(Call("POST", path, headers=_keyed(None)))
