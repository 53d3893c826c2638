"""The noun `workflow`: publish, show, follow and cancel. Reference: features.md (Workflows)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from callboard.cli.method_verbs import calling_verb
from callboard.cli.session import (
    EXIT_UNSUCCESSFUL,
    EXIT_USAGE,
    Session,
    cell,
    error_text,
    noun,
    object_in,
    printable,
    stop,
    table,
    verb,
)

workflows = noun("workflow", "Publish and follow workflows.")

calling_verb(workflows, "budget", "budget", "Show a workflow's budget.", "workflow")
calling_verb(
    workflows, "cancel", "cancel",
    "Cancel a workflow; the rest of its escrow returns to the payer.", "workflow",
    options="reason details",
)  # fmt: skip
calling_verb(
    workflows, "resume", "resume",
    "Resume a quarantined workflow: the step that failed is run again.", "workflow",
)  # fmt: skip
calling_verb(
    workflows, "list", "workflows", "List the caller's workflows, newest first.",
    options="status quarantined start_time end_time",
    columns="id status intent createdAt spentCredits quarantine",
)  # fmt: skip
calling_verb(
    workflows, "signed-results", "signed_results", "List the results that agents have signed.",
    "workflow", options="all", columns="nodeId agentDid attempt resultHash timestamp signature",
)  # fmt: skip

_Id = Annotated[str, typer.Argument(help="The workflow's ID.", metavar="WORKFLOW")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the workflow ends.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show the nodes until the workflow ends.")]
# The most characters of a result that text output shows. JSON output shows the whole result.
RESULT_CHARS_MAX = 2_000


@verb(workflows, "publish")
def publish(
    session: Session,
    manifest: Annotated[
        str, typer.Argument(help="Manifest, a JSON file; - reads standard input.", metavar="FILE")
    ],
    wait: Wait = False,
    watch: Watch = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and estimate only; nothing is published.")
    ] = False,
) -> None:
    """Publish a workflow; prints its ID first."""
    workflow = object_in(manifest, "a manifest")
    if not dry_run:
        show_published(session, session.client.publish(workflow), wait, watch)
        return
    reply = session.client.publish({**workflow, "dryRun": True})
    session.show(reply, lambda: _print_dry_run(reply))
    failing = reply.get("unavailable", {}).keys() - reply.get("waiting", {}).keys()
    if failing or reply["status"] == "failed":
        raise typer.Exit(EXIT_UNSUCCESSFUL)


def show_published(session: Session, reply: Mapping[str, Any], wait: bool, watch: bool) -> None:
    """Show a published workflow; the exit code is 1 if the shown status is a failure.

    Args:
        session: the verb's session.
        reply: the reply to the publish.
        wait: wait until the workflow ends, then show its record.
        watch: show the changes of the workflow's nodes until it ends.
    """
    if wait or watch:
        warn(reply)
        if not session.is_json:
            print(f"{'workflowId':<12}  {reply['workflowId']}", flush=True)
    if watch:
        watch_workflow(session, reply["workflowId"])
        return
    record = session.client.wait(reply["workflowId"]) if wait else reply
    session.show(record, lambda: _print_record(record))
    if record["status"] != "success" if wait else record["status"] == "failed":
        raise typer.Exit(EXIT_UNSUCCESSFUL)


def warn(reply: Mapping[str, Any]) -> None:
    """Print the warnings of a reply to standard error."""
    for warning in reply.get("warnings") or ():
        print(f"warning: {printable(warning)}", file=sys.stderr, flush=True)


def _print_dry_run(reply: Mapping[str, Any]) -> None:
    """Print the result of a dry run: its members, then a table of the nodes' agents."""
    warn(reply)
    apart = ("candidates", "unavailable", "waiting", "warnings", "order")
    _print_record({name: value for name, value in reply.items() if name not in apart})
    rows = []
    for node, agents in reply.get("candidates", {}).items():
        problem = reply["unavailable"].get(node)
        waiting = reply["waiting"].get(node)
        wait = f"waits up to {waiting['waitForAgentMs'] / 1_000:g} s: " if waiting else ""
        more = [f"{len(agents) - 3} more"] if len(agents) > 3 else []
        rows.append((node, [*agents[:3], *more], wait + error_text(problem) if problem else "-"))
    if rows:
        print()
        table(("node", "agents", "problem"), rows)


@verb(workflows, "suggest")
def suggest(
    session: Session,
    description: Annotated[
        str, typer.Argument(help="What the workflow does, in English.", metavar="DESCRIPTION")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="Value of an input; repeatable.", metavar="NODE.NAME=VALUE"),
    ] = None,
    publish_it: Annotated[
        bool, typer.Option("--publish", help="Publish the draft after a confirmation.")
    ] = False,
    is_agreed: Annotated[
        bool, typer.Option("--yes", help="Publish without a confirmation.")
    ] = False,
    wait: Wait = False,
    watch: Watch = False,
) -> None:
    """Draft a workflow from a description."""
    suggestion = session.client.suggest(description)
    draft = suggestion["draft"]
    _give_inputs(draft["nodes"], inputs or ())
    if not publish_it:
        session.show(suggestion, lambda: print_draft(suggestion))
        return
    if not session.is_json:
        print_draft(suggestion)
    missing = open_inputs(suggestion)
    if missing:
        stop(EXIT_USAGE, f"give the inputs {', '.join(missing)} by --input")
    if not is_agreed:
        typer.confirm("Publish it?", abort=True, err=True)
    show_published(session, session.client.publish(draft), wait, watch)


def _give_inputs(nodes: Mapping[str, Any], inputs: Sequence[str]) -> None:
    """Set inputs of a draft from `node.name=value`; end the process if a node does not exist."""
    for given in inputs:
        place, _, value = given.partition("=")
        node, _, name = place.partition(".")
        if node not in nodes or not name:
            stop(EXIT_USAGE, f"--input {given}: expected NODE.NAME=VALUE, of {', '.join(nodes)}")
        nodes[node].setdefault("payload", {})[name] = value


def open_inputs(suggestion: Mapping[str, Any]) -> list[str]:
    """Return the inputs that a suggested workflow still needs, as `node.input`."""
    nodes = suggestion["draft"]["nodes"]
    return [
        f"{node}.{name}"
        for node, names in suggestion["openInputs"].items()
        for name in names
        if name not in nodes[node].get("payload", {})
    ]


def print_draft(suggestion: Mapping[str, Any]) -> None:
    """Print a suggested workflow: its tree, missing inputs, unmatched words and notes."""
    from rich import print as print_tree

    from callboard.cli.tree import render_draft

    print_tree(render_draft(suggestion))
    missing = open_inputs(suggestion)
    if missing:
        print(f"missing inputs: {', '.join(missing)}")
    if suggestion["unmatched"]:
        print(f"no agent for: {'; '.join(suggestion['unmatched'])}")
    if suggestion["planner"] == "model":
        print("drafted by a model")
    for note in suggestion["notes"]:
        print(f"note: {note}")


@verb(workflows, "show")
def show(session: Session, workflow_id: _Id) -> None:
    """Show a workflow and its nodes."""
    record = session.client.workflow(workflow_id)
    session.show(record, lambda: _print_record(record))


@verb(workflows, "trace")
def trace(
    session: Session,
    trace_id: Annotated[
        str, typer.Argument(help="The workflow's ID, or a trace ID.", metavar="ID")
    ],
    workflow_id: Annotated[
        str | None,
        typer.Option("--workflow", help="The workflow's ID, if several share the trace ID."),
    ] = None,
) -> None:
    """Draw the trace of a workflow as a waterfall."""
    from callboard.cli.waterfall import draw

    if "-" in trace_id:  # a workflow's ID; trace IDs have no hyphen
        record = session.client.workflow(trace_id)
        trace_id, workflow_id = record.trace_id, record.id
    asked: dict[str, Any] = {} if workflow_id is None else {"workflow_id": workflow_id}
    page = session.client.trace(trace_id, **asked)
    whole: dict[str, Any] = {"trace": page.trace, "spans": list(page.rows)}
    while (place := page.next_place()) is not None:
        page = session.client.trace(trace_id, **asked, **place)
        whole["spans"] += page.rows
    session.show(whole, lambda: print("\n".join(draw(whole["spans"]))))


def _print_record(record: Mapping[str, Any]) -> None:
    first = [name for name in ("workflowId", "id") if name in record]
    width = max(12, *map(len, record))
    for name in (*first, *(one for one in record if one not in first)):
        value = record[name]
        if name == "error" and value:
            value = error_text(value)
        if name != "nodes" and (name != "id" or value != record.get("workflowId")):
            print(f"{name:<{width}}  {cell(value)}")
    nodes = record.get("nodes")
    if nodes:
        from callboard.cli.tree import status_text

        columns = ("agentDid", "attempts", "costCredits", "metrics")
        errors = {name: error_text(n["error"]) for name, n in nodes.items() if n.get("error")}
        print()
        table(
            ("node", "status", *columns, "error"),
            (
                [name, status_text(node), *map(node.get, columns), errors.get(name)]
                for name, node in nodes.items()
            ),
        )
        _print_results(nodes)


def _print_results(nodes: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the result of every node that has one, each cut to `RESULT_CHARS_MAX`."""
    for name, node in nodes.items():
        if "resultRef" in node:
            print(f"result of {name}: {node['resultRef']['size']} bytes, stored apart")
        if node.get("result") is None:
            continue
        text = printable(json.dumps(node["result"], ensure_ascii=False))
        if len(text) > RESULT_CHARS_MAX:
            text = f"{text[:RESULT_CHARS_MAX]}… ({len(text)} characters; --output json shows all)"
        print(f"result of {name}: {text}")


@verb(workflows, "prove")
def prove(
    session: Session,
    workflow_id: _Id,
    node: Annotated[str, typer.Argument(help="The node's name.", metavar="NODE")],
    file: Annotated[
        Path | None,
        typer.Option("-o", "--file", help="File for the bundle; default: standard output."),
    ] = None,
) -> None:
    """Write the bundle that proves a node that succeeded; `callboard verify` checks it offline."""
    from callboard.proofs import prove_node

    bundle = json.dumps(prove_node(session.client, workflow_id, node), separators=(",", ":"))
    if file is None:
        print(bundle)
        return
    try:
        file.write_text(bundle + "\n", encoding="utf-8")
    except OSError as error:
        stop(EXIT_USAGE, f"cannot write {file}: {error.strerror}")
    print(f"wrote {file}; verify it with: callboard verify {file}")


@verb(workflows, "watch")
def watch(session: Session, workflow_id: _Id) -> None:
    """Follow a workflow's nodes until it ends."""
    watch_workflow(session, workflow_id)


def watch_workflow(session: Session, workflow_id: str) -> None:
    """Follow a workflow until it ends, and print its results.

    The exit code is 1 if the workflow does not succeed.
    """
    from callboard.cli.tree import follow

    if session.is_json:
        record: Mapping[str, Any] = session.client.wait(workflow_id)
        print(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        record = follow(session.client, workflow_id)
        _print_results(record["nodes"])
    if record["status"] != "success":
        raise typer.Exit(EXIT_UNSUCCESSFUL)
