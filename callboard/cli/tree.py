"""Prints the changes of a workflow's nodes line by line, and the nodes of a draft as a tree.

A node of a workflow may have several parents, but a node of a tree has only one parent. So the tree
shows a node below its deepest parent, and names the other parents beside the node.
Reference: features.md (States).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from callboard.cli.session import credits_text, error_text
from callboard.replies import FINISHED

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from callboard.client import Client

Parents = Mapping[str, Sequence[str]]


def follow(client: Client, workflow_id: str) -> dict[str, Any]:
    """Print each change of a workflow's nodes until the workflow ends, and return its record."""
    seen: dict[str, Mapping[str, Any]] = {}
    record = _print_changes(client, workflow_id, seen)
    for entry in client.stream(workflow_id) if record["status"] not in FINISHED else ():
        if any(_is_news(event, seen) for event in entry["payload"]["events"]):
            record = _print_changes(client, workflow_id, seen)
        if record["status"] in FINISHED:
            break
    if record["status"] not in FINISHED:  # an agent's stream lacks the event of the workflow's end
        record = _print_changes(client, workflow_id, seen)
    print(f"   {workflow_id} {_end(record)}", flush=True)
    return record


def _print_changes(
    client: Client, workflow_id: str, seen: dict[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Read a workflow's record, print the nodes that have changed, and return the record.

    Args:
        client: reads the record.
        workflow_id: the workflow.
        seen: the nodes of the previously read record, by name; this function updates it.
    """
    record = client.workflow(workflow_id)
    for name, node in record["nodes"].items():
        # Every node begins as pending, so a new node that is pending is not printed.
        if status_text(seen.get(name, {"status": "pending"})) != status_text(node):
            print(" ".join(part for part in ("  ", name, *_facts(node)) if part), flush=True)
        seen[name] = node
    return record


def _is_news(event: Mapping[str, Any], seen: Mapping[str, Mapping[str, Any]]) -> bool:
    """Say whether an event may be newer than the record that was read last."""
    node = seen.get(event["payload"].get("nodeId", ""), {})
    return event["type"].startswith(("workflow.", "node.")) and not node.get("completedAt")


def _end(record: Mapping[str, Any]) -> str:
    """Return a workflow's status, and its error if there is one."""
    error = record.get("error")
    return f"{record['status']} {error_text(error)}" if error else str(record["status"])


def _facts(node: Mapping[str, Any]) -> list[str]:
    """Return what is known of a node: status, agent, latency, cost and error."""
    facts = [status_text(node), node.get("agentDid") or ""]
    if node["status"] in ("success", "failed", "timeout"):
        latency_ms = (node.get("metrics") or {}).get("latency_ms")
        facts += ["" if latency_ms is None else f"{latency_ms} ms"]
        facts += [f"{credits_text(node['costCredits'])} credits" if node.get("costCredits") else ""]
    facts += [error_text(node["error"])] if node.get("error") else []
    return facts


def status_text(node: Mapping[str, Any]) -> str:
    """Return a node's status; if the node waits for an agent, also the reason and the end."""
    waiting = node.get("waitingFor")
    if not waiting:
        return str(node["status"])
    return f"{node['status']}: waiting for an agent ({waiting['reason']}) until {waiting['until']}"


def render_draft(suggestion: Mapping[str, Any]) -> Tree:
    """Return the tree of a suggested workflow: each node's capability, price and confidence."""
    from rich.text import Text

    draft = suggestion["draft"]
    choices = {one["node"]: one for one in suggestion["choices"]}

    def line(name: str) -> Text:
        chosen = choices[name]
        price = chosen["priceCredits"]
        facts = [
            chosen["capabilityId"],
            "paid by tokens" if price is None else f"{credits_text(price)} credits",
            f"{chosen['confidence']:.0%} sure",
            f"else {chosen['alternative']}" if chosen["alternative"] else "",
            "no agent takes it now" if name in suggestion["unavailable"] else "",
        ]
        return Text(f"· {name}  ").append("  ".join(filter(None, facts)), style="dim")

    parents = {name: list(node.get("dependsOn") or ()) for name, node in draft["nodes"].items()}
    cost = credits_text(suggestion["estimatedCredits"])
    return _grown(f"{draft['intent']}: {cost} credits", parents, line)


def _grown(title: str, parents: Parents, line: Callable[[str], Text]) -> Tree:
    """Return a tree with a line for each node, placed below the node's deepest parent."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(title, style="bold"))
    branches: dict[str, Tree] = {}
    for name, deepest, others in order(parents):
        text = line(name)
        if others:
            text.append(f"  (after {', '.join(others)} too)", style="dim")
        branches[name] = (root if deepest is None else branches[deepest]).add(text)
    return root


def order(parents: Parents) -> list[tuple[str, str | None, list[str]]]:
    """Return the nodes, sorted so that each node comes after its parents.

    Each item is a node, its deepest parent (None if it has no parent) and its other parents.
    """
    depths: dict[str, int] = {}
    placed: list[tuple[str, str | None, list[str]]] = []
    waiting = list(parents)
    while waiting:
        free = [n for n in waiting if all(p in depths for p in parents[n] if p in parents)]
        # A draft has no cycle, so there is always a node whose parents are all placed.
        assert free, f"cycle among {waiting}"
        for name in free:
            above = [parent for parent in parents[name] if parent in parents]
            deepest = max(above, key=lambda parent: depths[parent], default=None)
            depths[name] = 0 if deepest is None else depths[deepest] + 1
            placed.append((name, deepest, [p for p in above if p != deepest]))
        waiting = [name for name in waiting if name not in depths]
    return placed
