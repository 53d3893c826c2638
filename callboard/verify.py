"""Verifies an exported audit log or a bundle offline, from the file and the first signing key.

Imports nothing of the project, so it can be copied and read alone. Formats: docs/proofs.md.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import insort
from collections import namedtuple
from collections.abc import Iterable, Mapping
from functools import reduce
from hashlib import sha256
from typing import Any

from nacl import exceptions, signing

_ENTRY = "action actorDid createdAt eventType hash id payload prevHash targetId targetType"
_NOTE = re.compile(r"((\S+)\n([1-9][0-9]{0,18})\n(\S{43}=)\n)\n— \2 (\S{91}=)\n", re.ASCII)
_NAMING = ("agent.registered", "agent.key_rotated", "agent.recovered")  # events with an agent's key
Checkpoint = namedtuple("Checkpoint", ("size", "root", "origin", "text", "signature"))
# `signed`: size of the last checkpoint. `key_id`: its key's id. `success`: the event of success.
Log = namedtuple("Log", ("entries", "head_hash", "signed", "key_id"))
Proof = namedtuple("Proof", ("parts", "key_id", "success"))


class NotProven(Exception):
    """The file has a defect in audit entry `entry`, or in the checkpoint of size `checkpoint`."""

    def __init__(self, why: str, entry: int | None = None, checkpoint: int | None = None) -> None:
        where = f"checkpoint of size {checkpoint}: " if checkpoint else ""
        super().__init__((f"audit entry {entry}: " if entry else where) + why)
        self.entry, self.checkpoint = entry, checkpoint


class Keys(dict[str, bytes]):
    """The signing keys of a log by id. Entry 1 names the first key; each key signs the next one."""

    origin = newest = signer = ""

    def follow(self, number: int, entry: Mapping[str, Any], first: str) -> None:
        """Add the signing key that an entry names, if any. `first`: the first key; "": any key."""
        said = entry["payload"]
        if number > 1:
            if entry["eventType"] != "signing_key.rotated":
                return
            said = said["events"][0]["payload"]
            message = f"rotate-signing-key:{said['publicKey']}"
            is_signed = _signed(message, _raw(said["proof"]), self[self.newest])
            _expect(is_signed, "the previous signing key did not sign the next one", number)
        elif first not in ("", said["publicKey"]):
            raise NotProven(f"the first key is {said['publicKey']}, expected {first}", 1)
        self.newest = sha256(key := _raw(said["publicKey"])).hexdigest()[:16]
        self[self.newest] = key
        self.origin = self.origin or f"{said['origin']}/{self.newest}"

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that the newest key signed the checkpoint."""
        size, _, origin, text, signature = checkpoint
        key, self.signer = self[self.newest], self.newest
        name = sha256(f"{self.origin}\n\x01".encode() + key).digest()[:4]
        is_named = (origin, signature[:4]) == (self.origin, name)
        is_signed = is_named and _signed(text, signature[4:], key)
        _expect(is_signed, "is not signed by the key in use", None, size)


def verify_log(lines: Iterable[bytes], key: str = "", notes: Iterable[str] = ()) -> Log:
    """Verify a log. `key`: its first key, base64; "": any key. `notes`: additional checkpoints."""
    keys, count, head, signed = Keys(), 0, "sha256:" + "0" * 64, 0
    ahead = sorted(map(_checkpoint, notes))
    peaks: list[bytes] = []  # the roots of the complete subtrees, the largest subtree first
    for line in lines:
        entry = _parsed(line, count + 1)
        if entry.keys() == {"checkpoint"}:
            insort(ahead, _checkpoint(entry["checkpoint"]))
        else:
            count += 1
            peaks.append(_leaf(line, entry, count, head))
            head = entry["hash"]
            for _ in range((count & -count).bit_length() - 1):
                peaks[-2:] = [_node(*peaks[-2:])]
            keys.follow(count, entry, key)
        while ahead and ahead[0][0] <= count:
            keys.check(ahead[0])
            signed, expected, *_ = ahead.pop(0)
            root = reduce(lambda right, left: _node(left, right), peaks[::-1])
            fits = (count, root) == (signed, expected)
            _expect(fits, f"does not fit entries 1 to {count}", None, signed)
    for size, *_ in ahead:
        raise NotProven(f"the log ends before it, at entry {count}", checkpoint=size)
    _expect(signed, "no checkpoint signs an entry of this log")
    return Log(count, head, signed, keys.signer)


def verify_bundle(text: bytes, first_key: str = "") -> Proof:
    """Verify a bundle. The result proves the node's success, and the `parts` that are True."""
    keys, facts, bundle = Keys(), list[dict[str, Any]](), _parsed(text, None)
    _expect(bundle["bundle"] == 1, "is no bundle of version 1")
    size, root, *_ = checkpoint = _checkpoint(bundle["checkpoint"])
    for part in bundle["entries"]:
        line, number = f"{part['line']}\n".encode(), part["id"]
        entry = _parsed(line, number)
        leaf = _leaf(line, entry, number, entry["prevHash"])
        climbed = _climbed(leaf, number - 1, size, [*map(bytes.fromhex, part["hashes"])])
        _expect(climbed == root, f"is not in the tree of the checkpoint of size {size}", number)
        keys.follow(number, entry, first_key)
        for one in entry["payload"].get("events", ()):
            facts.append(one["payload"] | one | {"workflowId": one["targetId"], "auditId": number})
    keys.check(checkpoint)
    workflow, node = bundle["workflowId"], bundle["nodeId"]
    own = [one for one in facts if (one["targetId"], one.get("nodeId")) == (workflow, node)]
    done = next((one for one in own if one["type"] == "node.succeeded"), {})
    _expect(done, "no entry says that the node succeeded")
    agent = [one for one in facts if one["targetId"] == done["agentDid"] and one["type"] in _NAMING]
    receipt, result = bundle["receipt"] or {"signed": "{}"}, bundle["signedResult"] or {}
    said = _parsed(f"{receipt['signed']}\n".encode(), None)
    for claim in said, result, {"outputHash": result.get("resultHash", done["outputHash"])}:
        is_same = all(done[one] == claim[one] for one in claim.keys() & done.keys())
        _expect(is_same, "the receipt or the result differs from the entry", done["auditId"])
    if said:
        ours = _signed(receipt["signed"], _raw(receipt["signature"]), keys.get(said["keyId"], b""))
        _expect(ours, "the key of this log that the receipt names did not sign it")
    agent_key, message = result.get("publicKey"), f"{node}:{workflow}:{done['outputHash']}"
    is_agents = not agent_key or _signed(message, _raw(result["signature"]), _raw(agent_key))
    _expect(is_agents, "the agent's key did not sign the result")
    card_hash = sha256((bundle["card"] or "").encode()).hexdigest()
    parts = {
        "payment": any(one["type"] == "payment.settled" for one in own),
        "receipt": bool(said),
        "signature": any(agent_key and one.get("publicKey") == agent_key for one in agent),
        "card": any(one.get("cardSha256") == card_hash for one in agent),
    }
    return Proof(parts, keys.signer, done)


def _expect(holds: object, why: str, entry: int | None = None, size: int | None = None) -> None:
    if not holds:
        raise NotProven(why, entry, size)


def _checkpoint(note: str) -> Checkpoint:
    if (found := _NOTE.fullmatch(note)) is None:
        raise NotProven(f"got {note[:60]!r}, expected a checkpoint with one signature")
    return Checkpoint(int(found[3]), _raw(found[4]), found[2], found[1], _raw(found[5]))


def _parsed(line: bytes, number: int | None) -> dict[str, Any]:
    try:
        value = json.loads(line.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise NotProven(f"cannot be read: {error}", number) from None
    _expect(isinstance(value, dict) and line[-1:] == b"\n", "is no complete JSON object", number)
    return dict(value)


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(value := dict(members)) != len(members):
        raise ValueError("an object has the same member twice")
    return value


def _leaf(line: bytes, entry: Mapping[str, Any], number: int, head: str) -> bytes:
    """Check an entry, and return its leaf's hash. `head`: the hash of the previous entry."""
    if (members := " ".join(entry)) != _ENTRY:
        raise NotProven(f"has the members {members}, expected {_ENTRY}", number)
    body = line[:-1].replace(f'"hash":"{entry["hash"]}",'.encode(), b"", 1)
    own = f"sha256:{sha256(body).hexdigest()}"
    for member, expected in ("id", number), ("prevHash", head), ("hash", own):
        if entry[member] != expected or entry[member] is True:
            raise NotProven(f"{member} is {entry[member]!r}, expected {expected!r}", number)
    return sha256(b"\0" + body).digest()


def _climbed(leaf: bytes, at: int, size: int, hashes: list[bytes]) -> bytes:
    """Return the root of `size` leaves, computed from leaf `at` (from 0) and its RFC 6962 proof."""
    if size <= 1 or not hashes:
        return leaf if (at, size, hashes) == (0, 1, []) else b""
    split = 1 << (size - 1).bit_length() - 1
    if at < split:
        return _node(_climbed(leaf, at, split, hashes[:-1]), hashes[-1])
    return _node(hashes[-1], _climbed(leaf, at - split, size - split, hashes[:-1]))


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def _raw(text: str) -> bytes:
    raw = base64.b64decode(text.removeprefix("ed25519:"), validate=True)
    _expect(text.endswith(base64.b64encode(raw).decode()), f"{text} is not canonical base64")
    return raw


def _signed(message: str, signature: bytes, key: bytes) -> bool:
    try:
        return bool(signing.VerifyKey(key).verify(message.encode(), signature))
    except exceptions.CryptoError:
        return False
