"""Exports the audit log, and makes the bundles that prove the success of a node.

`callboard.verify` checks both offline. docs/proofs.md describes their formats.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final

import httpx

from callboard.calls import ATTEMPTS_MAX, Call, error_from
from callboard.client import Client
from callboard.errors import UNREACHABLE, CallboardError, NotFound, Unavailable
from callboard.transport import read_reply
from core.jcs import jcs
from core.records.agent import without_standing_bids
from core.trust.receipts import signed_members

Json = dict[str, Any]
# The most audit entries per event type that are searched for an agent's key and card.
_AGENT_ENTRIES: Final = 100
# The longest wait for a checkpoint. If there are new entries, the service signs a checkpoint each
# second. Its health reports a problem if new entries stay unsigned for this long.
_SIGNED_AFTER_S: Final = 60.0
_PAUSE_S: Final = 0.5


def audit_lines(client: Client, first: int = 1) -> Iterator[bytes]:
    """Yield the lines of the audit log from an entry on, and resume if the connection fails.

    Args:
        first: the id of the first entry.

    Raises:
        CallboardError: the service refused, or cannot be reached.
    """
    attempts = 0
    while True:
        call = Call("GET", "/v1/audit/export", query={"from": first})
        try:
            with client._http.stream(**client._arguments(call)) as response:
                if response.status_code != 200:
                    response.read()
                    raise error_from(read_reply(response))
                for line in _lines_of(response):
                    yield line
                    first, attempts = first + 1, 0
            return
        except httpx.HTTPError as error:
            attempts += 1
            if attempts == ATTEMPTS_MAX:
                raise Unavailable(UNREACHABLE, 0, client._failed(error).reason) from error
            time.sleep(_PAUSE_S)


def _lines_of(response: httpx.Response) -> Iterator[bytes]:
    """Yield the complete lines of a reply.

    Lines end only at a newline. httpx's `iter_lines` also splits at other characters, which a JSON
    text may contain.
    """
    rest = b""
    for part in response.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        yield from (line + b"\n" for line in lines)


def export_log(client: Client, path: Path) -> tuple[int, int]:
    """Export the audit log up to its newest checkpoint to a file; the last line is the checkpoint.

    If the file holds an export of this log, the export continues after its last complete line.

    Returns: the number of entries added, and the number of entries that the checkpoint covers.

    Raises:
        ValueError: the file is no export of this log, or has more entries than the checkpoint
            covers.
        CallboardError: the service refused, or its export ended too early.
    """
    note = client.audit_checkpoint().note
    size = int(note.split("\n")[1])
    with path.open("ab+") as file:
        kept, end, is_signed = _continued(file, jcs(client.audit_entry("1")) + b"\n")
        if kept > size:
            raise ValueError(f"it has {kept} entries, and the newest checkpoint covers {size}")
        file.truncate(end)
        number = kept
        for line in audit_lines(client, kept + 1) if kept < size else ():
            file.write(line)
            number += 1
            if number == size:
                break
        if number < size:
            detail = f"the export ended after entry {number}, its checkpoint covers {size}"
            raise Unavailable(UNREACHABLE, 0, detail)
        if number > kept or not is_signed:
            file.write(jcs({"checkpoint": note}) + b"\n")
    return number - kept, size


def _continued(file: IO[bytes], first: bytes) -> tuple[int, int, bool]:
    """Return the end of the export that a file holds.

    Args:
        file: the file.
        first: the line of the log's first entry.

    Returns: the id of the last complete entry, 0 if there is none; the position after the last
    complete line; whether that line is a checkpoint.

    Raises:
        ValueError: the file does not begin with the log's first entry.
    """
    file.seek(0)
    end, entry, is_signed = 0, b"", False
    for line in file:
        if end == 0 and not first.startswith(line):
            raise ValueError("it holds no export of this deployment's audit log")
        if not line.endswith(b"\n"):
            break
        end += len(line)
        is_signed = line.startswith(b'{"checkpoint"')
        entry = entry if is_signed else line
    return (json.loads(entry)["id"] if entry else 0), end, is_signed


def prove_node(client: Client, workflow_id: str, node_id: str) -> Json:
    """Return the bundle that proves the success of a node.

    The bundle has audit entries with inclusion proofs, a checkpoint, the agent's signed result, the
    receipt and the agent card. Entries that the caller may not read completely are omitted; the
    bundle then does not prove what they contain.

    Raises:
        CallboardError: the node has not succeeded or does not exist, or the service refused.
    """
    record = client.workflow(workflow_id)
    node = record["nodes"].get(node_id, {})
    entries = [*client.iterate_audit(target_id=record["id"], limit=1_000)]
    done = next((one for one in entries if _has(one, "node.succeeded", nodeId=node_id)), None)
    if done is None:
        raise NotFound("NOT_FOUND", 404, f"node {node_id} of {workflow_id} has not succeeded")
    published = [one for one in entries if _has(one, "workflow.published")]
    wanted: dict[int, Json] = {one["id"]: one for one in (*published, done)}
    signed = _of_node(client.iterate_signed_results(record["id"]), node_id)
    receipt = _of_node(client.iterate_receipts_of_workflow(record["id"]), node_id)
    card = _card(client, node["agentDid"])
    for entry in _agent_entries(client, node["agentDid"], done["id"], signed, card):
        wanted[entry["id"]] = entry
    note = _checkpoint(client, max(wanted))
    size = int(note.split("\n")[1])
    for key in client.service_description().signing_keys:
        if key.audit_id <= size:
            wanted[key.audit_id] = client.audit_entry(str(key.audit_id))
    return {
        "bundle": 1,
        "workflowId": record["id"],
        "nodeId": node_id,
        "checkpoint": note,
        "entries": [_proven(client, wanted[number], size) for number in sorted(wanted)],
        "signedResult": signed,
        "receipt": receipt
        and {"signed": jcs(signed_members(receipt)).decode(), "signature": receipt["signature"]},
        "card": card,
        "node": node,
    }


def _proven(client: Client, entry: Json, size: int) -> Json:
    proof = client.audit_proof(entry["id"], size=size)
    hashes = [one.removeprefix("sha256:") for one in proof.hashes]
    return {"id": entry["id"], "line": jcs(entry).decode(), "hashes": hashes}


def _has(entry: Json, kind: str, **members: Any) -> bool:
    """Say whether an entry has an event of this type whose payload has these members."""
    return any(
        event["type"] == kind and members.items() <= event["payload"].items()
        for event in entry["payload"]["events"]
    )


def _agent_entries(
    client: Client, did: str, before: int, signed: Json | None, card: str
) -> Iterator[Json]:
    """Yield the entries that name the agent's card and key, if the caller may read them.

    Args:
        did: the agent.
        before: only entries with a smaller id.
        signed: the agent's signed result, which names the key; None if there is none.
        card: the agent card in canonical JSON.
    """
    kinds = ("agent.registered", "agent.key_rotated", "agent.recovered")
    found = [
        entry
        for kind in kinds
        for entry in client.audit(target_id=did, event_type=kind, limit=_AGENT_ENTRIES).rows
        if entry["id"] < before
    ]
    card_hash = sha256(card.encode()).hexdigest()
    yield from [e for e in found if _has(e, "agent.registered", cardSha256=card_hash)][:1]
    key = signed and signed["publicKey"]
    yield from [e for e in found if key and any(_has(e, kind, publicKey=key) for kind in kinds)][:1]


def _of_node(rows: Iterator[Json], node_id: str) -> Json | None:
    return next((row for row in rows if row["nodeId"] == node_id), None)


def _card(client: Client, did: str) -> str:
    """Return the currently registered agent card in canonical JSON, empty if it cannot be read.

    Standing bids are secret, so they are removed.
    """
    try:
        return jcs(without_standing_bids(client.agent(did)["acard"])).decode()
    except CallboardError:
        return ""


def _checkpoint(client: Client, entry_id: int) -> str:
    """Wait until a checkpoint covers an entry, and return the first such checkpoint."""
    deadline = time.monotonic() + _SIGNED_AFTER_S
    while True:
        try:
            return client.audit_checkpoint(size=entry_id).note
        except NotFound:
            if time.monotonic() > deadline:
                detail = f"audit entry {entry_id} is not signed yet"
                raise Unavailable(UNREACHABLE, 404, detail) from None
        time.sleep(_PAUSE_S)
