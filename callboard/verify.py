"""The audit chain, checked by anyone who sees the entries: needs them and nothing else.

Knows no service and no database. An entry's hash is `sha256:` + hex of SHA-256 over the JCS form
(RFC 8785) of the entry without its `hash`; `prevHash` is inside, ids have no gap, and the first
entry's `prevHash` is 64 zeros. A chain alone cannot show that its newest entries were cut off.
An entry stands for one command, and `payload.events` lists what it did. The first entry of a chain,
which no command made, is one event itself. Reference: money.md (Audit chain).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from core.jcs import jcs

GENESIS_HASH = "sha256:" + "0" * 64
# The members of an entry whose reader is no party of it and has no right audit:all.
_HIDDEN = {"id", "eventType", "hash"}


class ChainBroken(Exception):
    """An entry is not what its chain says it must be.

    Args:
        entry_id: the entry at which the chain breaks.
        member: the member of it that is wrong.
        got: its value.
        expected: what the chain demands.
    """

    def __init__(self, entry_id: object, member: str, got: object, expected: object) -> None:
        super().__init__(entry_id, member, got, expected)
        self.entry_id = entry_id
        self.member = member
        self.got = got
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"audit entry {self.entry_id}: {self.member} is {self.got!r}, "
            f"expected {self.expected!r}"
        )


class EntriesHidden(Exception):
    """Some entries show only their hash, and the others have no defect.

    Args:
        entries: the number of entries.
        hidden: how many of them could not be verified.
    """

    def __init__(self, entries: int, hidden: int) -> None:
        super().__init__(entries, hidden)
        self.entries = entries
        self.hidden = hidden

    def __str__(self) -> str:
        return (
            f"cannot verify the whole chain: {self.hidden} of {self.entries} entries show only "
            "their hash, because the key that read them lacks the right audit:all. "
            "The other entries have no defect"
        )


@dataclass(frozen=True, slots=True)
class Chain:
    """An intact chain: how many entries, and the hash of the newest one."""

    entries: int
    head_hash: str


def entry_hash(entry: Mapping[str, Any]) -> str:
    """Compute what an entry's `hash` must be.

    Raises:
        ChainBroken: the entry holds a value that has no canonical form.
    """
    unhashed = {name: value for name, value in entry.items() if name != "hash"}
    try:
        form = jcs(unhashed)
    except ValueError as error:
        raise ChainBroken(entry.get("id"), "value", str(error), "a canonical form") from error
    return "sha256:" + hashlib.sha256(form).hexdigest()


def events_of(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the events of an entry, each with `type`, `targetType`, `targetId` and `payload`.

    Args:
        entry: of `GET /v1/audit`; the first one, without `payload.events`, is its own event.
    """
    payload = entry.get("payload")
    events = payload.get("events") if isinstance(payload, Mapping) else None
    if events is not None:
        return list(events)
    return [
        {
            "type": entry.get("eventType"),
            "targetType": entry.get("targetType"),
            "targetId": entry.get("targetId"),
            "payload": payload,
        }
    ]


def verify_chain(newest_first: Iterable[Mapping[str, Any]]) -> Chain:
    """Check a whole chain, down to its first entry, in constant memory.

    1. Every entry's `hash` is the hash of the rest of it.
    2. Every entry's `prevHash` is the `hash` of the entry before it.
    3. Ids count down to 1 without a gap.
    4. The first entry's `prevHash` is 64 zeros.
    5. What an entry says of itself (type and target) is what its first event says.

    Args:
        newest_first: all entries, whole, in the order of `GET /v1/audit`.

    Raises:
        ChainBroken: the first defect found.
        EntriesHidden: no defect was found, but some entries show only their hash.
    """
    newer: Mapping[str, Any] | None = None
    count, hidden, head_hash = 0, 0, GENESIS_HASH
    for entry in newest_first:
        entry_id = entry.get("id")
        is_hidden = entry.keys() == _HIDDEN
        if not is_hidden and "payload" not in entry:
            raise ChainBroken(entry_id, "payload", "nothing", "a whole entry")
        computed = str(entry["hash"]) if is_hidden else entry_hash(entry)
        if entry.get("hash") != computed:
            raise ChainBroken(entry_id, "hash", entry.get("hash"), computed)
        if newer is None:
            head_hash = computed
        else:
            if entry_id != newer["id"] - 1:
                raise ChainBroken(newer["id"], "predecessor's id", entry_id, newer["id"] - 1)
            if newer.keys() != _HIDDEN and newer.get("prevHash") != computed:
                raise ChainBroken(newer["id"], "prevHash", newer.get("prevHash"), computed)
        # A boolean is an int to Python and 1 == True: an id must be a true integer.
        if type(entry_id) is not int:
            raise ChainBroken(entry_id, "id", entry_id, "an integer")
        if not is_hidden:
            _check_first_event(entry)
        newer, count, hidden = entry, count + 1, hidden + is_hidden
    if newer is not None and newer["id"] != 1:
        raise ChainBroken(newer["id"], "id of the oldest entry", newer["id"], 1)
    if newer is not None and newer.keys() != _HIDDEN and newer.get("prevHash") != GENESIS_HASH:
        raise ChainBroken(newer["id"], "prevHash", newer.get("prevHash"), GENESIS_HASH)
    if hidden:
        raise EntriesHidden(count, hidden)
    return Chain(count, head_hash)


def _check_first_event(entry: Mapping[str, Any]) -> None:
    """Check that an entry shows its first event.

    Raises:
        ChainBroken: it shows another one, or its events are no list of objects.
    """
    try:
        (first, *_) = events_of(entry)
        said = {
            "eventType": first["type"],
            "targetType": first["targetType"],
            "targetId": first["targetId"],
        }
    except (TypeError, KeyError, ValueError) as error:
        raise ChainBroken(entry.get("id"), "events", repr(error), "a list of events") from error
    for member, expected in said.items():
        if entry.get(member) != expected:
            raise ChainBroken(entry.get("id"), member, entry.get(member), expected)
