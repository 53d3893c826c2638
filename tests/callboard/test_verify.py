"""The offline verifier: what a deployment makes passes, and no change of it does.

Reference: money.md (Verifying the chain), docs/proofs.md.
"""

from __future__ import annotations

import ast
import base64
import copy
import io
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import callboard.verify
from callboard.verify import NotProven, verify_bundle, verify_log
from core.jcs import jcs
from tests.callboard.audit_logs import (
    AGENT,
    AGENT_KEY,
    KEYS,
    VECTORS,
    bundle_of,
    checkpoint_line,
    line_of,
    log_of,
    vectors,
)

SIZE, OLDER = 40, 25
LINES, NOTES = log_of(SIZE)
EXPORT = [*LINES, checkpoint_line(NOTES[SIZE - 1])]
KEY = KEYS[0].public_key
PARTS = ("payment", "receipt", "signature", "card")


def refuted(lines: Iterable[bytes], *notes: str) -> NotProven:
    """Return why a log is not proven."""
    with pytest.raises(NotProven) as found:
        verify_log(lines, KEY, notes)
    return found.value


def test_the_verifier_is_one_readable_file_that_imports_nothing_of_the_project() -> None:
    text = Path(callboard.verify.__file__).read_text(encoding="utf-8")
    assert text.count("\n") <= 200
    nodes = list(ast.walk(ast.parse(text)))
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not [one for one in named if one.split(".")[0] in ("core", "callboard", "ledger")]


@pytest.mark.parametrize("size", [1, 2, 6, 7, 8, SIZE])
def test_an_intact_log_is_proven_up_to_its_last_checkpoint(size: int) -> None:
    lines, notes = log_of(size)
    log = verify_log(lines, KEY, notes)
    assert (log.entries, log.signed) == (size, size)
    assert log.head_hash == json.loads(lines[-1])["hash"]
    assert str(refuted(lines)) == "no checkpoint signs an entry of this log"
    # Checkpoints may stand between the entries, at their size or before.
    between = [*lines[: size // 2], checkpoint_line(notes[size - 1]), *lines[size // 2 :]]
    log = verify_log(between)
    assert (log.signed, log.key_id) == (size, KEYS[size >= 7].key_id)


def test_checkpoints_of_another_key_or_log_are_refused() -> None:
    other = NOTES[OLDER - 1].replace("callboard.example", "callboard.elsewhere")
    assert refuted(EXPORT, other).checkpoint == OLDER
    assert "first key" in str(refuted_with_key(AGENT_KEY.public_key))
    unsigned = NOTES[OLDER - 1].rpartition(" ")[0] + " " + NOTES[OLDER].rpartition(" ")[2]
    assert refuted(EXPORT, unsigned).checkpoint == OLDER


def refuted_with_key(key: str) -> NotProven:
    with pytest.raises(NotProven) as found:
        verify_log(EXPORT, key)
    return found.value


def test_a_replaced_key_signs_no_later_checkpoint() -> None:
    size, origin = 10, NOTES[0].partition("\n")[0]
    text = "\n".join(NOTES[size - 1].split("\n")[:3]) + "\n"
    named = NOTES[0].rpartition(" ")[2]  # begins with the first key's hash
    signature = base64.b64decode(named)[:4] + KEYS[0].sign_raw(text.encode())
    forged = f"{text}\n— {origin} {base64.b64encode(signature).decode()}\n"
    assert str(refuted(LINES, forged)) == "checkpoint of size 10: is not signed by the key in use"


def test_a_rotation_that_the_previous_key_did_not_sign_is_refused() -> None:
    entry = json.loads(LINES[6])
    (event,) = entry["payload"]["events"]
    event["payload"]["proof"] = AGENT_KEY.sign(b"rotate-signing-key:" + KEYS[1].public_key.encode())
    found = refuted(rewritten(LINES, 7, payload=entry["payload"]))
    assert (found.entry, "previous signing key" in str(found)) == (7, True)


def test_entries_shown_by_their_hash_only_are_not_proven() -> None:
    entry = json.loads(LINES[4])
    link = jcs({name: entry[name] for name in ("id", "eventType", "hash")}) + b"\n"
    assert refuted([*LINES[:4], link, *LINES[5:]]).entry == 5


def test_a_checkpoint_that_stands_too_late_is_refused() -> None:
    late = [*LINES[:9], checkpoint_line(NOTES[7])]
    assert str(refuted(late)) == "checkpoint of size 8: does not fit entries 1 to 9"


def test_a_member_that_stands_twice_is_refused() -> None:
    doubled = LINES[2].replace(b'"note":', b'"note":"","note":')
    assert "same member twice" in str(refuted([*LINES[:2], doubled]))


def rewritten(lines: list[bytes], number: int, **changes: Any) -> list[bytes]:
    """Return a log in which an entry is changed and all hashes from it on are computed anew."""
    made, previous = lines[: number - 1], None
    for line in lines[number - 1 :]:
        entry = json.loads(line)
        if previous is None:
            entry |= changes
        else:
            entry["prevHash"] = previous
        made.append(line_of(jcs({name: v for name, v in entry.items() if name != "hash"})))
        previous = json.loads(made[-1])["hash"]
    return made


def tamper(drawn: random.Random) -> tuple[str, list[bytes], int]:
    """Return a kind of tampering, the log after it, and the line at which it first differs."""
    lines, kind = list(LINES), drawn.choice(("flip", "delete", "insert", "swap", "cut", "rewrite"))
    first = drawn.randrange(SIZE)
    if kind == "flip":
        line = bytearray(lines[first])
        line[drawn.randrange(len(line))] ^= 1 << drawn.randrange(8)
        lines[first] = bytes(line)
    elif kind == "delete":
        del lines[first]
    elif kind == "insert":
        lines.insert(first, drawn.choice(LINES))
    elif kind == "swap":
        second = drawn.choice([number for number in range(SIZE) if number != first])
        lines[first], lines[second] = lines[second], lines[first]
    elif kind == "cut":
        lines = lines[:first]
    else:
        first = max(first, 1)
        lines = rewritten(lines, first + 1, actorDid=f"did:example:{drawn.randrange(10**6)}")
    pairs = zip(lines, LINES, strict=False)
    differs = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
    return kind, lines, min(len(lines), SIZE) if differs is None else differs


def check_tampers(count: int, seed: int) -> None:
    """Check that each of many random changes is found, and that what it changed is named.

    The checkpoints of all sizes from `OLDER` on are at hand; the log itself ends with its own.
    """
    drawn = random.Random(seed)
    at_hand = [NOTES[size - 1] for size in (OLDER, OLDER + 7, SIZE)]
    sizes = [OLDER, OLDER + 7, SIZE]
    for number in range(count):
        kind, lines, differs = tamper(drawn)
        found = refuted(io.BytesIO(b"".join(lines)), *at_hand)
        about = (seed, number, kind, str(found))
        if kind == "rewrite" or differs == len(lines):
            assert found.entry is None, about
            assert found.checkpoint == next(size for size in sizes if size > differs), about
        else:
            assert found.entry == differs + 1, about


def test_every_random_tampering_is_found_and_named() -> None:
    check_tampers(1_500, seed=1)


@pytest.mark.soak
def test_ten_thousand_random_tamperings_are_found_and_named(drawn_from: int) -> None:
    check_tampers(10_000, drawn_from)


def bundle_text(bundle: dict[str, Any]) -> bytes:
    """Return a bundle as its file holds it."""
    return json.dumps(bundle, separators=(",", ":")).encode() + b"\n"


def test_a_whole_bundle_proves_all_of_its_parts() -> None:
    proof = verify_bundle(bundle_text(bundle_of()), KEY)
    assert proof.parts == dict.fromkeys(PARTS, True)
    assert (proof.success["agentDid"], proof.success["auditId"]) == (AGENT, 12)
    assert proof.key_id == KEYS[1].key_id


def test_what_a_bundle_lacks_is_not_proven() -> None:
    bundle = bundle_of()
    bundle["entries"] = [one for one in bundle["entries"] if one["id"] not in (4, 13)]
    bundle["receipt"] = None
    assert not any(verify_bundle(bundle_text(bundle), KEY).parts.values())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("entries", 3, "id"), 11),
        (("entries", 3, "hashes"), []),
        (("entries", 3, "hashes", 0), "00" * 32),
        (("checkpoint",), NOTES[19]),
        (("receipt", "signature"), AGENT_KEY.sign(b"x")),
        (("receipt", "signed"), bundle_of()["receipt"]["signed"].replace("example", "examplf")),
        (("bundle",), 2),
        (("receipt", "signed"), "[" * 200_000),
        (("signedResult", "resultHash"), "sha256:" + "0" * 64),
        (("signedResult", "agentDid"), "did:example:other"),
        (("signedResult", "signature"), AGENT_KEY.sign(b"x")),
        (("signedResult", "publicKey"), KEYS[0].public_key),
    ],
)
def test_a_changed_part_of_a_bundle_is_refused(place: tuple[Any, ...], value: object) -> None:
    bundle = copy.deepcopy(bundle_of())
    part: Any = bundle
    for name in place[:-1]:
        part = part[name]
    assert part.get(place[-1]) != value if isinstance(part, dict) else part[place[-1]] != value
    part[place[-1]] = value
    with pytest.raises(NotProven):
        verify_bundle(bundle_text(bundle), KEY)


def test_a_receipt_is_signed_by_the_key_that_it_names() -> None:
    bundle = bundle_of()
    receipt = bundle["receipt"]
    receipt["signature"] = KEYS[0].sign(receipt["signed"].encode())
    with pytest.raises(NotProven, match="the receipt names did not sign it"):
        verify_bundle(bundle_text(bundle), KEY)
    for name in ("", AGENT_KEY.key_id):
        signed = receipt["signed"].replace(KEYS[1].key_id, name)
        bundle["receipt"] = {"signed": signed, "signature": KEYS[1].sign(signed.encode())}
        with pytest.raises(NotProven, match="the receipt names did not sign it"):
            verify_bundle(bundle_text(bundle), KEY)


def test_a_bundle_without_the_nodes_success_proves_nothing() -> None:
    bundle = bundle_of() | {"nodeId": "b", "receipt": None}
    with pytest.raises(NotProven, match="no entry says that the node succeeded"):
        verify_bundle(bundle_text(bundle), KEY)


def test_a_key_or_card_that_no_entry_names_is_not_proven() -> None:
    bundle = bundle_of() | {"card": "{}"}
    message = f"a:{bundle['workflowId']}:{json.loads(bundle['receipt']['signed'])['outputHash']}"
    other = {"publicKey": KEYS[1].public_key, "signature": KEYS[1].sign(message.encode())}
    parts = verify_bundle(bundle_text(bundle | {"signedResult": other}), KEY).parts
    assert [part for part, is_proven in parts.items() if is_proven] == ["payment", "receipt"]


def test_a_key_that_was_only_requested_is_not_the_agents() -> None:
    """A recovery is requested by one guardian, and may never be carried out."""
    bundle = bundle_of(named_by="recovery.requested")
    parts = verify_bundle(bundle_text(bundle), KEY).parts
    assert [part for part, is_proven in parts.items() if is_proven] == ["payment", "receipt"]


def test_the_vectors_are_those_that_are_made_now() -> None:
    for name, content in vectors().items():
        assert (VECTORS / name).read_bytes() == content, name
