"""The rows of one batch: plans add them, `parameters` encodes them for `commit_batch`.

This file knows the columns of rows, the hash chain and the balances of accounts. Plans decide which
rows to add. A command with events gets one audit entry, which lists these events. The command's
money entries carry the id of that audit entry. Adding a row also changes the state cache. Therefore
a batch is either committed as a whole, or the cache is dropped. Reference: money.md (Rules that the
database enforces, Commands and keys, Audit chain).
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any, Final, NamedTuple

from core.errors import ErrorCode
from core.money import ISSUED_MICRO_MAX
from core.records.audit import LIFE_EVENTS, AuditEventType, Named, named_in
from core.timestamps import iso_ms
from core.trust.hashchain import record_body, record_hash
from ledger.authority import Authority
from ledger.commands import Command, Outcome, OutcomeStatus, request_hash_of
from ledger.tables.history_tables import AUDIT_ENTRIES, AUDIT_EVENTS, AUDIT_PARTIES, COMMANDS
from ledger.tables.money_tables import ACCOUNTS, ENTRIES
from ledger.tables.table import Encoded, Row, cleaned, encode_json, hex_text
from ledger.tables.write_function import FREQUENT
from ledger.tables.writes import Write
from ledger.writer.state_cache import Account, KnownAgent, StateCache

# The reply to a command that was applied.
Result = dict[str, Any]

_NAMES: Final = {event: (event.value, event.action) for event in AuditEventType}


class _Event(NamedTuple):
    """One event of a command, about one target."""

    event: AuditEventType
    target_type: str
    target_id: str
    payload: dict[str, Any]


class Refusal(Exception):
    """A plan raises this exception to reject its command, before the plan adds rows. By default the
    rejection is stored under the command's key, and repeats of the key get it again.

    A rejection with `retry_after_s` is not stored, because its cause passes by itself (decision
    refunds-disputes-invoices-quotas). A rejection with `is_stored=False` is not stored either, so
    another command may use the key (decision auctions).
    """

    def __init__(
        self,
        code: ErrorCode,
        detail: str,
        *,
        is_audited: bool = False,
        is_stored: bool = True,
        retry_after_s: int | None = None,
        result: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(code, detail, is_audited, is_stored, retry_after_s, result)
        self.code = code
        self.detail = detail
        self.is_audited = is_audited
        self.is_stored = is_stored and retry_after_s is None
        # Details for the caller. Only a rejection that is not stored has details.
        self.result = {"retryAfterS": retry_after_s} if retry_after_s is not None else result or {}


# Constructors for the most frequent error codes; the argument is the detail.
conflict: Final = partial(Refusal, ErrorCode.CONFLICT)
forbidden: Final = partial(Refusal, ErrorCode.FORBIDDEN)
invalid: Final = partial(Refusal, ErrorCode.INVALID_REQUEST)
not_found: Final = partial(Refusal, ErrorCode.NOT_FOUND)


class Batch:
    """One transaction that is being planned.

    Args:
        cache: the committed state; planning changes it.
        now_ms: the time in the rows; never before the newest committed time.
        clock_ms: the wall clock, which decides whether something has expired (revocations, keys,
            rounds); None: `now_ms`. The two differ after an operator has set back a clock that was
            ahead: new rows then get the newest committed time, but nothing may expire early.
        loaded: the return value of the command's `load` (`plans`), if the batch has one.
    """

    def __init__(
        self, cache: StateCache, now_ms: int, clock_ms: int | None = None, loaded: Any = None
    ) -> None:
        self.cache = cache
        self.loaded = loaded
        self.now_ms = now_ms
        self.clock_ms = now_ms if clock_ms is None else clock_ms
        self.created_at = iso_ms(now_ms)
        # By write, then by key, in order; rows of `add` have a running number as their key.
        self._rows: defaultdict[Write, dict[Any, Row]] = defaultdict(dict)
        # The events and the caller of the command that is being planned.
        self._events: list[_Event] = []
        self.actor_did = ""
        self._parties: set[str] = set()
        # Keys of commands that store no row, because they are refused without a trace or have no
        # effect.
        self.untraced: set[str] = set()
        self.is_directory_changed = False

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to commit."""
        return not (self._rows[COMMANDS] or self._rows[AUDIT_ENTRIES])

    def add(self, write: Write, row: Row) -> None:
        """Add a row (column to value) whose key no other row of the batch has."""
        rows = self._rows[write]
        rows[len(rows)] = row

    def put(self, write: Write, key: Any, row: Row) -> None:
        """Set the row (column to value) of a key; it replaces an earlier row of the same key."""
        self._rows[write][key] = row

    def store(self, write: Write, key: Any, /, *sources: object, **columns: Any) -> None:
        """Set the row of a key to `columns`, completed by the attributes of `sources` that have the
        name of a column."""
        names = [column.name for column in write.given if column.name not in columns]
        for source in sources:
            columns |= {name: getattr(source, name) for name in names if hasattr(source, name)}
        self.put(
            write,
            key,
            {
                name: hex_text(value) if isinstance(value, bytes) else value
                for name, value in columns.items()
            },
        )

    def row(self, write: Write, key: Any) -> Row | None:
        """Return the row that was put under a key, or None."""
        return self._rows[write].get(key)

    def rows(self, write: Write) -> list[Row]:
        """Return all rows of a write, in the order in which they were added."""
        return list(self._rows[write].values())

    def drop(self, write: Write, key: Any) -> None:
        """Remove the row that was put under a key, if there is one."""
        self._rows[write].pop(key, None)

    def account(self, address: str, kind: str, owner_did: str | None) -> Account:
        """Return the account at an address; open an empty account if there is none."""
        known = self.cache.accounts.get(address)
        if known is not None:
            return known
        head = self.cache.head
        head.account_seq += 1
        opened = Account(head.account_seq, kind, 0)
        self.cache.accounts[address] = opened
        self.add(
            ACCOUNTS, {"id": opened.id, "address": address, "owner_did": owner_did, "kind": kind}
        )
        return opened

    def agent(self, did: str) -> KnownAgent:
        """Return a registered agent.

        Raises:
            Refusal: NOT_FOUND.
        """
        known = self.cache.agents.get(did)
        if known is None:
            raise not_found(f"the agent {did} is not known")
        return known

    def transfer(
        self,
        debit: Account | None,
        credit: Account | None,
        micro: int,
        kind: str,
        description: str,
        *,
        workflow_id: str | None = None,
        node_id: str | None = None,
    ) -> list[int]:
        """Add an entry of micro-credits from `debit` to `credit`; return its id in a list.

        For an amount of 0 no entry is added, and the list is empty. The entry carries the id of the
        audit entry of the command that is being planned.
        """
        if micro == 0:
            return []
        assert debit is not None, (kind, micro)
        assert credit is not None, (kind, micro)
        debit.balance -= micro
        credit.balance += micro
        # The plan has checked amount and balance before; a CHECK in the database checks them again.
        assert micro > 0, micro
        assert debit.balance >= 0 or debit.kind == "external", (debit, micro)
        # No account can hold more than all issued credits, and their sum is bounded.
        assert credit.balance <= ISSUED_MICRO_MAX, (credit, micro)
        head = self.cache.head
        head.entry_seq += 1
        self.add(
            ENTRIES,
            {
                "id": head.entry_seq,
                "debit_account_id": debit.id,
                "credit_account_id": credit.id,
                "amount": micro,
                "kind": kind,
                "description": description,
                "audit_id": head.audit_seq + 1,
                "workflow_id": workflow_id,
                "node_id": node_id,
            },
        )
        return [head.entry_seq]

    @property
    def audit_id(self) -> int | None:
        """The id of the audit entry of the command that is being planned, None if no events yet."""
        return self.cache.head.audit_seq + 1 if self._events else None

    def record(self, event: AuditEventType, target: tuple[str, str], /, **payload: Any) -> int:
        """Add an event about `target` (type, id) to the command that is being planned.

        Args:
            payload: texts, integers, lists and objects with ASCII keys.
        Returns: the id of the command's audit entry.
        """
        self._events.append(_Event(event, *target, payload))
        return self.cache.head.audit_seq + 1

    def add_parties(self, *dids: str | None) -> None:
        """Add parties, which may see the audit entry of the command that is being planned.

        The DIDs that its events name are parties anyway. None is ignored.
        """
        self._parties.update(did for did in dids if did is not None)

    def end_command(self, authority: Authority | None = None) -> None:
        """Write the audit entry of the command that was planned last, if it has events.

        Args:
            authority: the single right that permitted the command, None if none was used.
        """
        events, self._events = self._events, []
        if not events:
            return
        listed = [
            {
                "type": event.value,
                "targetType": target_type,
                "targetId": target_id,
                "payload": payload,
            }
            for event, target_type, target_id, payload in events
        ]
        payload: dict[str, Any] = {"events": listed}
        if authority is not None:
            payload["authority"] = {"right": authority.right, "reason": authority.reason}
        self._write_entry(self.actor_did, events, payload)

    def found(self, target: tuple[str, str], payload: dict[str, Any]) -> None:
        """Write the first audit entry of the chain. It belongs to no command."""
        event = _Event(AuditEventType.LEDGER_CREATED, *target, payload)
        self._write_entry("", [event], payload)

    def _write_entry(self, actor_did: str, events: list[_Event], payload: dict[str, Any]) -> None:
        head = self.cache.head
        head.audit_seq += 1
        first, target_type, target_id, _ = events[0]
        name, action = _NAMES[first]
        for is_cleaned in (False, True):
            try:
                body = record_body(
                    head.audit_seq,
                    name,
                    actor_did=actor_did,
                    target_type=target_type,
                    target_id=target_id,
                    action=action,
                    payload=payload,
                    created_at=self.created_at,
                    prev_hash=head.hash,
                )
                break
            except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot encode
                if is_cleaned:
                    raise
                actor_did, target_id = cleaned(actor_did), cleaned(target_id)
                payload = cleaned(payload)
        head.hash = record_hash(body)
        self.add(
            AUDIT_ENTRIES,
            {
                "id": head.audit_seq,
                "event_types": tuple(dict.fromkeys(event.event.value for event in events)),
                "actor_did": actor_did,
                "workflow_id": next(
                    (e.target_id for e in events if e.target_type == "workflow"), None
                ),
                "body": body,
                "hash": hex_text(head.hash),
            },
        )
        for number, event in enumerate(events):
            if event.event not in LIFE_EVENTS:
                self.add(
                    AUDIT_EVENTS,
                    {
                        "audit_id": head.audit_seq,
                        "number": number,
                        "event_type": event.event.value,
                        "target_type": event.target_type,
                        "target_id": event.target_id,
                    },
                )
        for party in self._find_parties(actor_did, events):
            self.add(AUDIT_PARTIES, {"party": party, "audit_id": head.audit_seq})

    def _find_parties(self, actor_did: str, events: list[_Event]) -> list[str]:
        """Return the parties of an audit entry, including the current owners of the agents in
        it."""
        found, self._parties = self._parties, set()
        found.add(actor_did)
        for event, _, target_id, payload in events:
            for named, value in named_in(event, target_id, payload):
                if named is Named.WORKFLOW:
                    escrow = self.cache.escrows.get(value)
                    if escrow is not None:
                        found.add(escrow.payer_did)
                    continue
                found.add(value)
                agent = self.cache.agents.get(value) if named is Named.AGENT else None
                if agent is not None:
                    found.add(agent.owner_did)
        # An actor without a DID is a process of the service.
        return [party for party in found if party.startswith("did:")]

    def applied(self, command: Command, result: Result) -> Outcome:
        """Store a command's result under its key unless it is untraced; return the outcome."""
        if command.key not in self.untraced:
            self._store_command(command, {"result": result} if result else {})
        return Outcome(OutcomeStatus.APPLIED, result)

    def refused(self, command: Command, refusal: Refusal) -> Outcome:
        """Store a rejection under its command's key and return it as the outcome."""
        if refusal.is_audited:
            self.record_refusal(command.key, refusal)
        self._store_command(command, {"error": refusal.code.value, "detail": refusal.detail})
        return Outcome(OutcomeStatus.REJECTED, {}, refusal.code, refusal.detail)

    def _store_command(self, command: Command, answer: Row) -> None:
        row: Row = {"id": command.key, **answer}
        if (request_hash := request_hash_of(command)) is not None:
            row["request_hash"] = hex_text(request_hash)
        if self.audit_id is not None:
            row["audit_id"] = self.audit_id
        self.add(COMMANDS, row)

    def record_refusal(self, key: str, refusal: Refusal) -> None:
        """Add the event of a refused command. The event names no actor."""
        self.actor_did = ""
        payload = {"code": refusal.code.value, "detail": refusal.detail}
        self.record(AuditEventType.COMMAND_REFUSED, ("command", key), **payload)

    def parameters(self) -> tuple[Any, ...]:
        """Return the parameters of the SQL function that commits a batch, in its order."""
        assert not self._events, "a command's events are written down when it has been planned"
        head = self.cache.head
        parameters: list[Any] = [head.epoch, self.now_ms, head.audit_seq]
        for write in FREQUENT:
            rows = self.rows(write)
            if write.lines is not None:
                # Popped, because `lines` are a separate parameter and not part of the rows' JSON.
                lines = b"\n".join([row.pop(write.lines) for row in rows])
            parameters.append(encode_json(rows) if rows else None)
            if write.lines is not None:
                parameters.append(Encoded(lines) if rows else None)
            if write.is_counted:
                parameters.append(len(rows))
        rare = {
            write.name: self.rows(write)
            for write, rows in self._rows.items()
            if rows and not write.is_frequent
        }
        parameters.append(encode_json(rare) if rare else None)
        parameters.append(str(head.audit_seq) if self.is_directory_changed else None)
        return tuple(parameters)
