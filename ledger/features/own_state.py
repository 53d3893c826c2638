"""Reads what this deployment sends to its peers (DID, keys, counts, offers, trust events), and
signs requests to them.

Reference: features.md (Peers), http.md (Authentication).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import sqlalchemy as sql

from core.json_text import read_json
from core.money import MICRO_PER_CENT, credits_number
from core.peers.documents import ROTATIONS_MAX, TRUST_PAGE_EVENTS, deployment_did
from core.records.api.peers import COUNT_MAX, LATENCY_MS_MAX, OFFERS_MAX, TRUST_EVENTS
from core.records.audit import AuditEventType
from core.settings import Settings
from core.trust.deployment_keys import DeploymentKeys
from core.trust.requests.request_signature import signature_headers
from core.trust.signing_keys import SigningKey
from ledger.features.audit_log import newest_entry_id
from ledger.features.peers import is_agent_revoked
from ledger.features.signing_keys import read_signing_key
from ledger.reads.agent_pages import IS_REVOKED
from ledger.reads.reader import LedgerReader
from ledger.schema import typed

# Maximum number of agents whose cards are read for the offers, and maximum size of such a card.
_AGENTS_MAX: Final = 10_000
_CARD_BYTES_MAX: Final = 32 * 1024
_NUL: Final = r"\u0000"

_FIRST_KEY: Final = sql.text(
    "SELECT public_key FROM callboard.signing_key ORDER BY audit_id LIMIT 1"
)
_ROTATIONS: Final = sql.text(
    """
    SELECT k.public_key, a.body FROM callboard.signing_key k
    JOIN callboard.audit a ON a.id = k.audit_id
    WHERE k.audit_id > 1 ORDER BY k.audit_id DESC LIMIT :most
    """
)
_COUNTS: Final = sql.text(
    """
    SELECT (SELECT count(*) FROM callboard.agent WHERE status = 'active') AS agents,
        (SELECT count(*) FROM callboard.workflow WHERE completed_ms IS NULL) AS workflows,
        (SELECT count(*) FROM callboard.member WHERE state <> 'gone') AS owners
    """
)
# Whether an agent `a` is in a private subnet. Only members of the subnet may know of it.
_IS_PRIVATE: Final = """EXISTS (
    SELECT FROM callboard.subnet s WHERE s.id = a.subnet_id AND s.policy_type = 'private')
"""
# The lowest fixed price of each capability. An agent without a price works for the registered
# price; without a registered price it gets no payment. An agent above the registered price gets no
# work. The query leaves out cards with U+0000, which Postgres cannot parse. It also leaves out
# agents of private subnets, because only this deployment decides who may use them.
_OFFERS: Final = sql.text(
    f"""
    WITH live AS MATERIALIZED (
        SELECT did, card::json AS card FROM callboard.agent a
        WHERE status = 'active' AND endpoint <> '' AND octet_length(card) <= {_CARD_BYTES_MAX}
            AND position('{_NUL}' IN card) = 0
            AND NOT {IS_REVOKED.format(did="a.did")} AND NOT {_IS_PRIVATE}
        ORDER BY registered_ms, did LIMIT {_AGENTS_MAX}
    ), offered AS (
        SELECT l.did, one->>'id' AS id, p.price_cents AS most,
            CASE WHEN json_typeof(one->'price_cents') = 'number'
                THEN (one->>'price_cents')::numeric
            WHEN json_typeof(one->'pricing') <> 'null' THEN NULL
            WHEN p.capability_id IS NULL THEN 0 ELSE p.price_cents END AS cents
        FROM live l CROSS JOIN LATERAL json_array_elements(l.card->'capabilities') one
            LEFT JOIN callboard.capability_price p ON p.capability_id = one->>'id'
    ), best AS (
        SELECT o.id, min(o.cents)::bigint AS cents, sum(r.successful) AS successful,
            (sum(r.latency_ms_sum) / nullif(sum(r.successful), 0))::bigint AS latency_ms
        FROM offered o LEFT JOIN callboard.reputation r ON r.agent_did = o.did
        WHERE o.cents <= coalesce(o.most, o.cents)
        GROUP BY o.id ORDER BY successful DESC NULLS LAST, o.id LIMIT {OFFERS_MAX}
    )
    SELECT b.id, b.cents, b.latency_ms, (
            SELECT v.version FROM callboard.capability_version v
            WHERE v.capability_id = b.id AND v.status = 'active'
            ORDER BY v.published_ms DESC LIMIT 1) AS version
    FROM best b ORDER BY b.successful DESC NULLS LAST, b.id
    """
)
_TRUST: Final = sql.text(
    f"""
    SELECT e.audit_id, e.number, e.event_type, e.target_id, a.body
    FROM callboard.audit_event e JOIN callboard.audit a ON a.id = e.audit_id
    WHERE e.event_type = ANY (:types) AND e.audit_id > :after AND e.audit_id <= :newest
        AND NOT EXISTS (SELECT FROM callboard.agent a WHERE a.did = e.target_id AND {_IS_PRIVATE})
    ORDER BY e.audit_id FETCH FIRST (:most) ROWS WITH TIES
    """
).bindparams(
    sql.bindparam("types", list(TRUST_EVENTS), type_=sql.ARRAY(sql.Text)),
    *typed(bigint="after newest most"),
)


class OwnIdentity(NamedTuple):
    """The DID of this deployment and its current key. `rotations`: the keys after the first, with
    their proofs."""

    did: str
    key: SigningKey
    rotations: list[dict[str, str]]


async def read_own_did(reader: LedgerReader) -> str:
    """Return the DID of this deployment."""
    (row,) = await reader.rows(_FIRST_KEY)
    return deployment_did(row["public_key"])


async def read_own_identity(reader: LedgerReader, settings: Settings) -> OwnIdentity:
    """Return the DID, key and rotations of this deployment.

    Raises:
        ServiceError: LEDGER_UNAVAILABLE; INTERNAL_ERROR: the signing key cannot be decrypted with
            the `deployment_key` of the settings.
    """
    rows = await reader.rows(_ROTATIONS, {"most": ROTATIONS_MAX})
    rotations = [
        {"publicKey": row["public_key"], "proof": _proof_in(row["body"])} for row in reversed(rows)
    ]
    key = await read_signing_key(reader, settings.deployment_keys)
    return OwnIdentity(await read_own_did(reader), key, rotations)


async def read_own_state(reader: LedgerReader, settings: Settings) -> dict[str, Any]:
    """Return the region, counts, load and offers of this deployment for its heartbeats."""
    (counts,) = await reader.rows(_COUNTS)
    room = max(1, counts["owners"]) * settings.workflows_per_actor_max
    return {
        "region": settings.region,
        "agentCount": min(COUNT_MAX, counts["agents"]),
        "workflowCount": min(COUNT_MAX, counts["workflows"]),
        "load": min(1.0, counts["workflows"] / room),
        "capabilities": [
            {
                "id": row["id"],
                "priceCredits": credits_number(row["cents"] * MICRO_PER_CENT),
                "latencyMs": None
                if row["latency_ms"] is None
                else min(LATENCY_MS_MAX, row["latency_ms"]),
                "version": row["version"],
            }
            for row in await reader.rows(_OFFERS)
        ],
    }


async def read_trust_events(
    reader: LedgerReader, after: int, *, events_max: int = TRUST_PAGE_EVENTS
) -> tuple[list[dict[str, Any]], int]:
    """Return revocations and new keys of agents after an audit entry.

    Agents of private subnets are left out, because a peer cannot be a member.

    Args:
        after: the id of the audit entry up to which the peer has read.
        events_max: size of a page; it also contains all events of its last audit entry.

    Returns: the events, and the audit entry up to which the page is complete.
    """
    newest = await newest_entry_id(reader)
    rows = await reader.rows(_TRUST, {"after": after, "newest": newest, "most": events_max})
    to = rows[-1]["audit_id"] if len(rows) >= events_max else max(after, newest)
    return [_trust_event(row) for row in rows], to


def _trust_event(row: Mapping[str, Any]) -> dict[str, Any]:
    payload = read_json(row["body"])["payload"]["events"][row["number"]]["payload"]
    event = {"id": row["audit_id"], "type": row["event_type"], "did": row["target_id"]}
    for name in ("expiresAt", "publicKey"):
        if payload.get(name) is not None:
            event[name] = payload[name]
    return event


def _proof_in(body: str) -> str:
    rotated = AuditEventType.SIGNING_KEY_ROTATED.value
    events = read_json(body)["payload"]["events"]
    return next(str(one["payload"]["proof"]) for one in events if one["type"] == rotated)


class RequestSigner:
    """Signs requests to peers as this deployment. It reads the key for the first request, and again
    after `forget`.

    Reference: http.md (Authentication).

    Args:
        reader: reads the ledger's rows.
        keys: unseal the signing key.
    """

    def __init__(self, reader: LedgerReader, keys: DeploymentKeys) -> None:
        self._reader = reader
        self._keys = keys
        self._did = ""
        self._key: SigningKey | None = None

    def forget(self) -> None:
        """Read the key again for the next request. Called when a peer has returned 401, because the
        key may have been rotated."""
        self._key = None

    async def headers(self, method: str, url: str, body: bytes) -> dict[str, str]:
        """Return the headers that sign a request.

        Args:
            method: in upper case.
            url: exactly as it is sent.
            body: empty if there is none.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; INTERNAL_ERROR: the signing key cannot be decrypted
                with the `deployment_key` of the settings.
        """
        if not self._did:
            self._did = await read_own_did(self._reader)
        key = self._key
        if key is None:
            key = self._key = await read_signing_key(self._reader, self._keys)
        return signature_headers(
            method,
            url,
            body,
            did=self._did,
            private_key=key.seed,
            created_s=int(time.time()),
            nonce=secrets.token_hex(12),
        )

    async def is_revoked(self, peer_id: str, agent_did: str) -> bool:
        """Say whether an agent at a peer is revoked, here or there (`is_agent_revoked`).

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        return await is_agent_revoked(self._reader, peer_id, agent_did)
