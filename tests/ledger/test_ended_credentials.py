"""Whose credential has ended between its recognition and the writer's decision gives nothing that
lasts.

Method: an agent that owns itself and is recovered; then each command that lasts, as a replica makes
it that remembers the key of before. Decision permissions-and-keys.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from enum import StrEnum
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

from msgspec.structs import fields, replace

from core.errors import ErrorCode
from core.records.statuses import OwnershipProof
from core.trust.did_key import did_of_key
from ledger.authority import AuthorizedCommand, OpenedBy, SignedBy
from ledger.commands import Command, OutcomeStatus
from ledger.features.keys import RotateKey
from ledger.features.prices import SetPrice
from ledger.registry import KINDS
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    PAYER,
    NextWriter,
    api_key,
    card,
    errors,
    new_id,
    new_key,
    revoke,
)
from tests.ledger.test_inheritances import set_heir
from tests.ledger.test_names import register
from tests.ledger.test_recoveries import (
    BY_CUSTODIAN,
    CUSTODIAN,
    SOCIAL,
    guardians,
    named_agents,
    request,
)

UNAUTHORIZED = ErrorCode.UNAUTHORIZED
OLD, NEW = SignedBy(AGENT, "K1"), SignedBy(AGENT, "K2")
# Money and words: each takes effect once, as it is given.
MOMENTARY: Final = {
    "Deposit", "DepositStake", "WithdrawStake", "SlashStake", "PlaceBid", "CreateInvoice",
    "SettleInvoice", "OpenDispute", "ResolveDispute", "GiveFeedback", "RebuildReputation",
    "NoteAuditedRead", "KeepBid", "SettleTask", "CollectCredits", "SettlePeer", "SubmitReceipt",
}  # fmt: skip
PLAIN: Final[dict[Any, Any]] = {
    str: new_id(), int: 1, bytes: b"x" * 32, bool: True, tuple: (), dict: {}, Mapping: {},
}  # fmt: skip


def sample(declared: Any) -> Any:
    """Return a value of a type; a message gets values for the fields without a default."""
    origin, arguments = get_origin(declared), get_args(declared)
    if type(None) in arguments:
        return None
    if origin in (Union, UnionType):
        return sample(arguments[0])
    if origin in PLAIN or declared in PLAIN:
        return PLAIN[origin or declared]
    if issubclass(declared, StrEnum):
        return next(iter(declared))
    return declared(**{one.name: sample(one.type) for one in fields(declared) if one.required})


def lasting_commands() -> list[AuthorizedCommand]:
    """Return a command of each type that gives what a thief would have after the recovery."""
    lasting = [kind for kind, how in KINDS.items() if how.outlives_credential]
    return [replace(sample(kind), key=new_key(), actor_did=AGENT) for kind in lasting]


def test_every_command_of_a_caller_that_lasts_names_its_credential() -> None:
    given = {kind.__name__ for kind in KINDS if issubclass(kind, AuthorizedCommand)}
    lasting = {type(one).__name__ for one in lasting_commands()}
    assert given - lasting == MOMENTARY
    assert lasting < given


async def recover(store: LedgerStore) -> None:
    """Register an agent that owns itself, whose key was K1 and is K2 by recovery."""
    itself = card(owner_did=AGENT, public_key="K1", proof=OwnershipProof.OPERATOR)
    _, *named = named_agents()
    begun: list[Command] = [
        itself, *named[:-1], guardians(actor_did=AGENT), register("mine", actor=AGENT),
        set_heir(actor=AGENT), request(BY_CUSTODIAN, CUSTODIAN),
        api_key("own", b"o" * 32, owner_did=AGENT), request(SOCIAL, new="K7", actor=AGENT),
    ]  # fmt: skip
    outcomes = await store.commit(begun, AT)
    assert [one.error for one in outcomes if one.error] == []


async def test_a_signature_by_the_key_of_before_gives_nothing_that_lasts(
    next_writer: NextWriter, auditor: Auditor
) -> None:
    """Over a restart of the writer, too; the key of now goes on under the same command's key."""
    store = await next_writer()
    await recover(store)
    commands = [replace(one, credential=OLD) for one in lasting_commands()]
    entries = auditor.one("SELECT max(id) FROM audit")
    for _ in range(2):
        assert set(await errors(store, *commands, at=AT + 1)) == {UNAUTHORIZED}
        store = await next_writer()
    assert auditor.one("SELECT max(id) FROM audit") == entries
    refused = next(one for one in commands if isinstance(one, SetPrice))
    (made,) = await store.commit([replace(refused, credential=NEW)], AT + 2)
    assert made.status is OutcomeStatus.APPLIED


async def test_a_did_key_and_an_api_key_count_as_long_as_they_are(next_writer: NextWriter) -> None:
    """A `did:key` until it is revoked; an API key until it ends."""
    own = did_of_key(b"k" * 32)
    store = await next_writer()
    by_itself = SignedBy(own, base64.b64encode(b"k" * 32).decode())
    await store.commit([*named_agents(), api_key("k", b"k" * 32, owner_did=AGENT)], AT)
    by_key = replace(guardians(actor_did=AGENT), credential=OpenedBy("k"))
    commands = [
        replace(card(own, owner_did=own), credential=by_itself),
        replace(card(own, owner_did=own), credential=replace(by_itself, public_key="K1")),
        revoke(own),
        replace(card(own, owner_did=own), credential=by_itself),
        by_key,
        request(BY_CUSTODIAN, CUSTODIAN),
        replace(by_key, key=new_key()),
        replace(card("did:test:more"), credential=OpenedBy("never")),
    ]
    outcomes = await store.commit(commands, AT + 1)
    assert [one.error for one in outcomes] == [
        None, UNAUTHORIZED, None, UNAUTHORIZED, None, None, UNAUTHORIZED, UNAUTHORIZED,
    ]  # fmt: skip
    assert {one.status for one in await store.commit(commands[:1], AT)} == {OutcomeStatus.REPEATED}


async def test_the_secret_of_before_a_rotation_gives_nothing_that_lasts(
    next_writer: NextWriter,
) -> None:
    """Else who has stolen it could rotate the key once more, and shut its owner out. In the overlap
    both secrets count, also after a restart of the writer."""
    store = await next_writer()
    stolen, next_one = OpenedBy("k", b"k" * 32), OpenedBy("k", b"n" * 32)

    def rotated(by: OpenedBy, to: bytes, *, overlap_ms: int = 0) -> AuthorizedCommand:
        command = RotateKey(
            key=new_key(), actor_did=PAYER, key_id="k", key_hash=to, overlap_ms=overlap_ms,
            owner_did=PAYER,
        )  # fmt: skip
        return replace(command, credential=by)

    def child(by: OpenedBy, key_id: str) -> AuthorizedCommand:
        return replace(api_key(key_id, key_id.encode() * 16, owner_did=PAYER), credential=by)

    batch: list[Command] = [
        api_key("k", b"k" * 32), rotated(stolen, b"n" * 32), rotated(stolen, b"t" * 32),
        child(stolen, "c1"), child(next_one, "c2"),
    ]  # fmt: skip
    assert await errors(store, *batch) == [None, None, UNAUTHORIZED, UNAUTHORIZED, None]
    store = await next_writer()
    last = OpenedBy("k", b"l" * 32)
    batch = [
        child(stolen, "c3"),
        rotated(next_one, b"l" * 32, overlap_ms=50),
        child(next_one, "c4"),
    ]
    assert await errors(store, *batch, at=AT + 1) == [UNAUTHORIZED, None, None]
    store = await next_writer()
    outcomes = await errors(store, child(next_one, "c5"), child(last, "c6"), at=AT + 2)
    assert outcomes == [None, None]
    outcomes = await errors(store, child(next_one, "c7"), child(last, "c8"), at=AT + 51)
    assert outcomes == [UNAUTHORIZED, None]


async def test_a_key_of_a_revoked_owner_gives_nothing_that_lasts(next_writer: NextWriter) -> None:
    """But for an administrator's: else the right to revoke could close the deployment for good."""
    store = await next_writer()
    keys = {name: api_key(name, name.encode() * 32, owner_did=AGENT) for name in ("k", "a")}
    keys["a"] = replace(keys["a"], scopes=("admin",))
    begun = [card(owner_did=AGENT, proof=OwnershipProof.OPERATOR), *keys.values()]
    await store.commit(begun, AT)
    heirs = [
        replace(set_heir(actor=AGENT), credential=OpenedBy(name, owner_did=AGENT)) for name in keys
    ]
    outcomes = await errors(store, heirs[0], revoke(AGENT), replace(heirs[0], key="h"), at=AT + 1)
    assert outcomes == [None, None, UNAUTHORIZED]
    store = await next_writer()
    outcomes = await errors(store, replace(heirs[0], key="i"), heirs[1], at=AT + 2)
    assert outcomes == [UNAUTHORIZED, None]
