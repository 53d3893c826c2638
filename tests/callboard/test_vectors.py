"""The test vectors, checked by a second implementation: pymerkle, rfc8785 and cryptography.

Written by docs/proofs.md alone, so it shares no code with the service or its verifier.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pymerkle import InmemoryTree, InvalidProof, verify_inclusion
from pymerkle.core import _inclusion_path_layout
from pymerkle.proof import InclusionProof

from callboard.verify import NotProven, verify_bundle, verify_log
from tests.callboard.audit_logs import VECTORS

KNOWN = json.loads((VECTORS / "vectors.json").read_bytes())
VERDICTS = KNOWN["verdicts"]
Json = dict[str, Any]


class Wrong(Exception):
    """The second implementation's verdict."""


def expect(condition: bool, verdict: str) -> None:
    if not condition:
        raise Wrong(verdict)


def is_signed(message: bytes, signature: str, key: bytes) -> bool:
    try:
        raw = base64.b64decode(signature.removeprefix("ed25519:"))
        Ed25519PublicKey.from_public_bytes(key).verify(raw, message)
    except InvalidSignature:
        return False
    return True


def body_of(entry: Json) -> bytes:
    return rfc8785.dumps({name: value for name, value in entry.items() if name != "hash"})


def note_defect(note: str, entries: list[Json], key: bytes) -> tuple[int, bytes]:
    """Return the size and the root of a checkpoint that is signed."""
    text, _, signed = note.partition("\n\n")
    origin, size, root = text.split("\n")
    terms = entries[0]["payload"]
    first = base64.b64decode(terms["publicKey"])
    assert origin == f"{terms['origin']}/{hashlib.sha256(first).hexdigest()[:16]}"
    dash, name, signature = signed.rstrip("\n").split(" ")
    raw = base64.b64decode(signature)
    assert (dash, name) == ("—", origin)
    assert raw[:4] == hashlib.sha256(origin.encode() + b"\n\x01" + key).digest()[:4]
    expect(
        is_signed(f"{text}\n".encode(), base64.b64encode(raw[4:]).decode(), key),
        f"checkpoint of size {size}: is not signed",
    )
    return int(size), base64.b64decode(root)


def check_log(lines: list[bytes]) -> str:
    """Return the verdict on a log."""
    tree, head, entries = InmemoryTree(), "sha256:" + "0" * 64, list[Json]()
    key, signed = b"", 0
    for line in lines:
        value = json.loads(line)
        assert rfc8785.dumps(value) == line, "a line is in canonical form"
        if "checkpoint" in value:
            size, root = note_defect(value["checkpoint"], entries, key)
            where = f"checkpoint of size {size}: "
            expect(size <= len(entries), f"{where}the log ends before it, at entry {len(entries)}")
            expect(root == tree.get_root(size), f"{where}does not fit entries 1 to {size}")
            signed = size
            continue
        entries.append(value)
        number, body = len(entries), body_of(value)
        own = "sha256:" + hashlib.sha256(body).hexdigest()
        for member, expected in (("id", number), ("prevHash", head), ("hash", own)):
            expect(value[member] == expected, f"audit entry {number}: {member}")
        head = own
        tree.append_entry(body)
        if number == 1:
            key = base64.b64decode(value["payload"]["publicKey"])
            assert value["payload"]["publicKey"] == KNOWN["firstKey"]
        if value["eventType"] == "signing_key.rotated":
            said = value["payload"]["events"][0]["payload"]
            assert is_signed(f"rotate-signing-key:{said['publicKey']}".encode(), said["proof"], key)
            key = base64.b64decode(said["publicKey"])
    return f"{len(entries)} entries, signed to {signed}"


def check_bundle(bundle: Json) -> str:
    """Return the verdict on a bundle."""
    entries = [json.loads(part["line"]) for part in bundle["entries"]]
    keys = [base64.b64decode(entries[0]["payload"]["publicKey"])]
    events = []
    for entry in entries[1:]:
        for event in entry["payload"]["events"]:
            events.append((entry["id"], event["type"], event["payload"]))
            if event["type"] == "signing_key.rotated":
                keys.append(base64.b64decode(event["payload"]["publicKey"]))
    size, root = note_defect(bundle["checkpoint"], entries, keys[-1])
    for entry, part in zip(entries, bundle["entries"], strict=True):
        leaf = hashlib.sha256(b"\0" + body_of(entry)).digest()
        rule, _ = _inclusion_path_layout(entry["id"], size)
        path = [leaf, *map(bytes.fromhex, part["hashes"])]
        proof = InclusionProof("sha256", True, size, entry["id"], rule, path)
        verify_inclusion(leaf, root, proof, index=entry["id"], size=size)
    ((_, _, done),) = [one for one in events if one[1] == "node.succeeded"]
    parts = ["payment"] if any(kind == "payment.settled" for _, kind, _ in events) else []
    receipt = bundle["receipt"]
    said = json.loads(receipt["signed"])
    assert rfc8785.dumps(said).decode() == receipt["signed"]
    signer = next(k for k in keys if hashlib.sha256(k).hexdigest()[:16] == said["keyId"])
    is_ours = is_signed(receipt["signed"].encode(), receipt["signature"], signer)
    expect(is_ours, "the key of this log that the receipt names did not sign it")
    assert said["outputHash"] == done["outputHash"]
    message = f"{bundle['nodeId']}:{bundle['workflowId']}:{done['outputHash']}".encode()
    agent_key = base64.b64decode(bundle["signedResult"]["publicKey"])
    assert is_signed(message, bundle["signedResult"]["signature"], agent_key)
    (registered,) = [payload for _, kind, payload in events if kind == "agent.registered"]
    parts += ["receipt"]
    if registered["publicKey"] == bundle["signedResult"]["publicKey"]:
        parts.append("signature")
    if registered["cardSha256"] == hashlib.sha256(bundle["card"].encode()).hexdigest():
        parts.append("card")
    return ", ".join(parts)


@pytest.mark.parametrize("name", VERDICTS)
def test_two_implementations_say_the_same_of_each_vector(name: str) -> None:
    text = (VECTORS / name).read_bytes()
    lines = text.split(b"\n")[:-1]
    try:
        second = check_log(lines) if name.startswith("log") else check_bundle(json.loads(text))
    except (Wrong, InvalidProof) as error:
        second = str(error)
    try:
        if name.startswith("log"):
            log = verify_log([line + b"\n" for line in lines], KNOWN["firstKey"])
            first = f"{log.entries} entries, signed to {log.signed}"
        else:
            parts = verify_bundle(text, KNOWN["firstKey"]).parts
            first = ", ".join(part for part, is_proven in parts.items() if is_proven)
    except NotProven as error:
        first = str(error)
    assert second == VERDICTS[name]
    assert first.startswith(VERDICTS[name])
