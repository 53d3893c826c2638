"""The workflows that every system runs, as data: which node needs which, what agents are sent.

Read by the runner and by the peers' services, so it needs no package.
"""

from __future__ import annotations

CAPABILITY = "cap.bench.v1"
# Node to its parents; a node's inputs are its parents' texts. Parents come first.
GRAPHS: dict[str, dict[str, tuple[str, ...]]] = {
    "chain3": {"a": (), "b": ("a",), "c": ("b",)},
    "fan10": {
        "first": (),
        **{f"m{number}": ("first",) for number in range(8)},
        "last": tuple(f"m{number}" for number in range(8)),
    },
}


def generations(shape: str) -> list[list[str]]:
    """Return the nodes by the number of steps before them: those of a generation run at once."""
    depths: dict[str, int] = {}
    for node, parents in GRAPHS[shape].items():
        depths[node] = 1 + max((depths[parent] for parent in parents), default=-1)
    return [
        [node for node, depth in depths.items() if depth == level]
        for level in range(max(depths.values()) + 1)
    ]


def node_body(shape: str, node: str, texts: dict[str, str]) -> dict[str, object]:
    """Return what a peer's step sends to the agent of a node.

    Args:
        texts: the results of the nodes before it, by node.
    """
    inputs = {"n": 1, **{f"text_{parent}": texts[parent] for parent in GRAPHS[shape][node]}}
    return {"eventId": f"{shape}-{node}", "capabilityId": CAPABILITY, "inputs": inputs}


def manifest(shape: str) -> dict[str, object]:
    """Return the same graph as a manifest of the service: 1 cent per node, inputs mapped."""
    nodes: dict[str, object] = {}
    for node, parents in GRAPHS[shape].items():
        nodes[node] = body = dict[str, object](capabilityId=CAPABILITY, payload={"n": 1})
        if parents:
            body["dependsOn"] = list(parents)
            body["inputMappings"] = {f"text_{one}": f"$.{one}.result.text" for one in parents}
    return {"intent": "bench", "nodes": nodes}
