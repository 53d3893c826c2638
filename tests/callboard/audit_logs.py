"""Audit logs and bundles made of fixed keys, as a deployment makes them; writes docs/vectors/.

`python -m tests.callboard.audit_logs` writes the vectors anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from core.jcs import jcs
from core.trust.hashchain import GENESIS_HASH, record_body, record_hash
from core.trust.merkle import extend, inclusion_ranges, root_of
from core.trust.signing_keys import SigningKey, checkpoint_note, signing_key_rotation_message

VECTORS = Path(__file__).resolve().parents[2] / "docs" / "vectors"
KEYS = [SigningKey(sha256(f"signing key {number}".encode()).digest()) for number in (1, 2)]
AGENT_KEY = SigningKey(sha256(b"agent key").digest())
LEDGER = "callboard.example"
ORIGIN = f"{LEDGER}/{KEYS[0].key_id}"
PAYER, AGENT = "did:example:payer", "did:example:agent"
WORKFLOW = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
CARD = jcs({"did": AGENT, "endpoint": "https://agent.example", "version": 1}).decode()
OUTPUT_HASH = "sha256:" + sha256(b'{"text":"done"}').hexdigest()

Json = dict[str, Any]


def line_of(body: bytes) -> bytes:
    """Return the line of an export that holds a body."""
    digest = record_hash(body).hex().encode()
    return body.replace(b',"id":', b',"hash":"sha256:%s","id":' % digest, 1) + b"\n"


@dataclass
class Made:
    """A log in the making: its bodies, and the keys in use, the newest last."""

    bodies: list[bytes] = field(default_factory=list)
    keys: list[SigningKey] = field(default_factory=list)
    tiles: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def add(self, event: str, payload: Json, target: tuple[str, str], actor: str = PAYER) -> None:
        """Append an entry with one event; the first entry is an event itself."""
        target_type, target_id = target
        described = {"type": event, "targetType": target_type, "targetId": target_id}
        body = record_body(
            len(self.bodies) + 1,
            event,
            actor_did=actor,
            target_type=target_type,
            target_id=target_id,
            action=event.partition(".")[2],
            payload={"events": [{**described, "payload": payload}]} if self.bodies else payload,
            created_at="2026-11-28T12:00:00.000Z",
            prev_hash=record_hash(self.bodies[-1]) if self.bodies else GENESIS_HASH,
        )
        leaf = sha256(b"\0" + body).digest()
        self.tiles |= extend(self.tiles, len(self.bodies), [leaf])
        self.bodies.append(body)

    def begin(self) -> None:
        """Append the first entry, which names the first key."""
        self.keys.append(KEYS[0])
        terms = {"currency": "CREDITS", "origin": LEDGER, "publicKey": KEYS[0].public_key}
        self.add("ledger.created", terms, ("ledger", LEDGER), actor="")

    def rotate(self) -> None:
        """Append the entry that names the second key."""
        named = KEYS[1].public_key
        proof = self.keys[-1].sign(signing_key_rotation_message(named))
        payload = {"formerKeyId": self.keys[-1].key_id, "publicKey": named, "proof": proof}
        self.add("signing_key.rotated", payload, ("signing_key", KEYS[1].key_id), actor="did:a:b")
        self.keys.append(KEYS[1])

    def fill(self, size: int) -> None:
        """Append deposits until the log has so many entries."""
        while len(self.bodies) < size:
            payload = {"amountCredits": str(len(self.bodies)), "note": 'é "ünïcode", \U0001f600'}
            self.add("ledger.deposited", payload, ("account", PAYER))

    def note(self) -> str:
        """Return the checkpoint of the log as it is."""
        size = len(self.bodies)
        return checkpoint_note(ORIGIN, size, root_of(0, size, self.tiles), self.keys[-1])

    @property
    def lines(self) -> list[bytes]:
        """The entries as an export has them."""
        return [line_of(body) for body in self.bodies]


def checkpoint_line(note: str) -> bytes:
    """Return the line of an export that holds a checkpoint."""
    return jcs({"checkpoint": note}) + b"\n"


def log_of(size: int, *, rotated_at: int = 7) -> tuple[list[bytes], list[str]]:
    """Return the lines of a log of deposits with one rotation, and a checkpoint of every size."""
    made, notes = Made(), []
    made.begin()
    for number in range(2, size + 2):
        notes.append(made.note())
        if number == rotated_at:
            made.rotate()
        elif number <= size:
            made.fill(number)
    return made.lines[:size], notes[:size]


def bundle_of(*, named_by: str = "agent.registered") -> Json:
    """Return a whole bundle: a node of a log of 20 entries, with a rotation before it.

    Args:
        named_by: type of the event that names the agent's key and card.
    """
    made = Made()
    made.begin()
    made.fill(3)
    registered = {"cardSha256": sha256(CARD.encode()).hexdigest()}
    named = {"publicKey": AGENT_KEY.public_key}
    made.add(named_by, registered | named, ("agent", AGENT), actor=AGENT)
    made.fill(6)
    made.rotate()
    made.fill(11)
    done = {"nodeId": "a", "attempt": 1, "agentDid": AGENT, "outputHash": OUTPUT_HASH}
    made.add("node.succeeded", done, ("workflow", WORKFLOW))
    made.add("payment.settled", {"nodeId": "a", "agentCredits": "1"}, ("workflow", WORKFLOW))
    made.fill(20)
    receipt = jcs({**done, "workflowId": WORKFLOW, "auditId": 12, "keyId": KEYS[1].key_id}).decode()
    message = f"a:{WORKFLOW}:{OUTPUT_HASH}".encode()
    return {
        "bundle": 1,
        "workflowId": WORKFLOW,
        "nodeId": "a",
        "checkpoint": made.note(),
        "entries": [
            {
                "id": number,
                "line": made.lines[number - 1].decode().rstrip("\n"),
                "hashes": [
                    root_of(start, end, made.tiles).hex()
                    for start, end in inclusion_ranges(number - 1, 20)
                ],
            }
            for number in (1, 4, 7, 12, 13)
        ],
        "signedResult": {"signature": AGENT_KEY.sign(message), **named},
        "receipt": {"signed": receipt, "signature": KEYS[1].sign(receipt.encode())},
        "card": CARD,
        "node": {"status": "success", "agentDid": AGENT},
    }


def vectors() -> dict[str, bytes]:
    """Return the files of docs/vectors/ by their names."""
    lines, notes = log_of(20)
    changed = json.loads(lines[12])
    forged = b"".join(lines[:12]) + line_of(
        jcs({**{k: v for k, v in changed.items() if k != "hash"}, "actorDid": "did:example:thief"})
    )
    bundle = bundle_of()
    wrong = json.loads(json.dumps(bundle))
    wrong["receipt"]["signature"] = AGENT_KEY.sign(wrong["receipt"]["signed"].encode())
    verdicts = {
        "log.jsonl": "20 entries, signed to 20",
        "log-changed.jsonl": "audit entry 9: hash",
        "log-cut.jsonl": "checkpoint of size 20: the log ends before it, at entry 15",
        "log-rewritten.jsonl": "checkpoint of size 13: does not fit entries 1 to 13",
        "bundle.json": "payment, receipt, signature, card",
        "bundle-receipt.json": "the key of this log that the receipt names did not sign it",
    }
    key = {"firstKey": KEYS[0].public_key, "verdicts": verdicts}
    end = checkpoint_line(notes[19])
    return {
        "log.jsonl": b"".join((*lines[:10], checkpoint_line(notes[9]), *lines[10:], end)),
        "log-changed.jsonl": b"".join(lines).replace(b'"amountCredits":"8"', b'"amountCredits":"9"')
        + end,
        "log-cut.jsonl": b"".join(lines[:15]) + end,
        "log-rewritten.jsonl": forged + checkpoint_line(notes[12]),
        "bundle.json": json.dumps(bundle, separators=(",", ":")).encode() + b"\n",
        "bundle-receipt.json": json.dumps(wrong, separators=(",", ":")).encode() + b"\n",
        "vectors.json": json.dumps(key, indent=2).encode() + b"\n",
    }


if __name__ == "__main__":
    for name, content in vectors().items():
        (VECTORS / name).write_bytes(content)
