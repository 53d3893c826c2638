"""Signed results, receipts of the deployment, and receipts that callers submit.

Reference: features.md (Signed results, Receipts).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import sqlalchemy as sql

from core.canonical import hash_bytes
from core.errors import ErrorCode, ServiceError
from core.ids import composed_key
from core.json_text import write_json
from core.money import credits_number
from core.records.api.kinds import ENTRY_ID_MAX
from core.records.audit import AuditEventType
from core.timestamps import iso_ms
from core.trust.deployment_keys import DeploymentKeys
from core.trust.receipts import signed_receipt
from ledger.authority import AuthorizedCommand
from ledger.connections.pools import OperationalPool
from ledger.features.accounts import IS_OWNERS
from ledger.features.signing_keys import read_signing_key
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import submitted_receipt
from ledger.tables.history_tables import SUBMITTED_RECEIPTS
from ledger.writer.batch import Batch, Result
from ledger.writer.command_kind import keys_of, plans
from ledger.writer.state_cache import wallet_address

# Reads of results of nodes that have succeeded, with the signatures of their agents. The rows of
# attempts contain the signatures.

# Whether an attempt `t` is the viewer's: its agent is the viewer, or the viewer owns the agent.
IS_VIEWERS: Final = f"""(t.agent_did = :viewer OR EXISTS (
    SELECT FROM callboard.agent a
    WHERE a.did = t.agent_did AND a.owner_did = :viewer AND {IS_OWNERS}))"""
_IS_WORKER: Final = sql.text(
    "SELECT 1 FROM callboard.attempt t"
    f" WHERE t.workflow_id = CAST(:workflow_id AS uuid) AND {IS_VIEWERS} LIMIT 1"
)
_RESULTS: Final = sql.text(
    f"""
    SELECT t.id, t.node AS node_id, t.attempt, t.agent_did, t.output_hash AS result_hash,
        t.signature, t.signed_key AS public_key, t.completed_ms
    FROM callboard.node n
    JOIN callboard.attempt t ON t.workflow_id = n.workflow_id AND t.node = n.name
        AND t.kind = 'primary' AND t.attempt = n.attempt AND t.outcome = 'success'
    WHERE n.workflow_id = CAST(:workflow_id AS uuid) AND n.status = 'success'
        AND n.name = coalesce(:node, n.name) AND (:is_all OR t.signature IS NOT NULL)
        AND (:viewer IS NULL OR {IS_VIEWERS}) AND t.id > CAST(:after AS bigint)
    ORDER BY t.id LIMIT :limit OFFSET :offset
    """
).bindparams(sql.bindparam("viewer", type_=sql.Text), sql.bindparam("node", type_=sql.Text))


async def is_worker(reader: LedgerReader, workflow_id: str, viewer: str) -> bool:
    """Say whether a DID, or an agent that it owns, has ended an attempt of a workflow."""
    values = {"workflow_id": workflow_id, "viewer": viewer}
    return bool(await reader.rows(_IS_WORKER, values))


async def result_rows(
    reader: LedgerReader,
    workflow_id: str,
    viewer: str | None,
    *,
    node: str | None = None,
    is_all: bool = True,
    after: int = 0,
    **page: int,
) -> list[RowDict]:
    """Return the results of a workflow's nodes that have succeeded, in the order of arrival.

    Args:
        workflow_id: as a canonical UUID.
        viewer: only results of this DID's agents; None: of all agents.
        node: only the result of this node; None: of all.
        is_all: include results without a signature.
        after: only attempts with larger ids.
        page: `limit` and `offset`.
    """
    asked = {"workflow_id": workflow_id, "viewer": viewer, "node": node, "is_all": is_all}
    return await reader.rows(_RESULTS, {**asked, "after": after, **page})


# Receipts that agents, their owners and payers submit. Each submitter can submit one receipt per
# node, and it is never removed.

# Maximum submitted receipts on a page. A node usually has 3: of its payer, agent and owner.
_SHOWN_MAX: Final = 1_000


class SubmitReceipt(AuthorizedCommand, frozen=True, kw_only=True):
    """Store the receipt of a node, submitted by its agent, the agent's owner or the payer.

    The key names the workflow, the node and the submitter, so each submits one receipt per node.
    `body`: the receipt in canonical form. `request_hash`: its hash. `is_verified`: whether its
    signature is valid; None: it cannot be checked. Rejection: KEY_REUSED (a different receipt was
    submitted before). Result: {"id"}.
    """

    request_hash: bytes
    receipt_id: str
    workflow_id: str
    node_id: str
    agent_did: str
    body: str
    is_verified: bool | None


def submit_receipt_key(workflow_id: str, node_id: str, submitter_did: str) -> str:
    """Return the key of a submitter's only receipt for a node."""
    return composed_key("receipt", workflow_id, node_id, submitter_did)


@plans(
    SubmitReceipt,
    reads=keys_of(workflow_ids="workflow_id", agent_dids="agent_did"),
    reuses_key=True,
)
def plan_submit_receipt(command: SubmitReceipt, batch: Batch) -> Result:
    """Store a receipt. The audit log contains its hash, not the receipt."""
    own = {"id": command.receipt_id, "submitter_did": command.actor_did}
    batch.store(SUBMITTED_RECEIPTS, command.receipt_id, command, **own)
    batch.record(
        AuditEventType.RECEIPT_SUBMITTED,
        ("receipt", command.receipt_id),
        workflowId=command.workflow_id,
        nodeId=command.node_id,
        agentDid=command.agent_did,
        receiptHash=hash_bytes(command.body.encode()),
    )
    return {"id": command.receipt_id}


async def submitted_rows(reader: LedgerReader, nodes: Collection[tuple[str, str]]) -> list[RowDict]:
    """Return the submitted receipts of some nodes, the oldest `_SHOWN_MAX`.

    Args:
        nodes: (workflow id, node name) pairs.
    """
    place = sql.tuple_(submitted_receipt.c.workflow_id, submitted_receipt.c.node_id)
    query = sql.select(submitted_receipt).where(place.in_(list(nodes)))
    return await reader.rows(query.order_by(submitted_receipt.c.created_ms).limit(_SHOWN_MAX))


# The deployment's receipts: one per payment of an agent, signed when it is first read. A receipt
# contains what the ledger stores about the payment and its attempt. Only the signed text and its
# signatures are stored, so a receipt does not change when the signing key is rotated. A function of
# the database stores them for the role `ops_writer`.

# Maximum entries of an agent's wallet that one page searches. It is at least the largest offset
# plus a page. A bound is needed, because few of the entries may be payments by the viewer.
LOOKED_AT_MAX: Final = 10_200
_SIGN_TRIES_MAX: Final = 3
# Finds the paid attempt of the node, or the paid verification. The entry after the payment is the
# fee.
_ROWS: Final = f"""
    SELECT e.id AS entry_id, e.workflow_id, e.node_id, e.amount AS amount_micro, e.audit_id,
        coalesce(f.amount, 0) AS fee_micro, t.agent_did, t.input_hash, t.output_hash, t.started_ms,
        t.completed_ms, r.body, r.signature, r.jws, c.note AS checkpoint
    FROM callboard.entry e
    JOIN callboard.workflow w ON w.id = e.workflow_id
    JOIN callboard.node n ON n.workflow_id = e.workflow_id
        AND n.name = split_part(e.node_id, '#verify', 1)
    JOIN callboard.attempt t ON t.workflow_id = e.workflow_id AND t.node = n.name
        AND t.kind = CASE WHEN e.node_id = n.name THEN 'primary' ELSE 'verify' END
        AND t.attempt = CASE WHEN e.node_id = n.name THEN n.attempt
            ELSE coalesce(nullif(split_part(e.node_id, '#verify', 2), '')::integer, 1) END
    LEFT JOIN callboard.entry f ON f.id = e.id + 1 AND f.kind = 'protocol_fee'
        AND f.workflow_id = e.workflow_id AND f.node_id = e.node_id
    LEFT JOIN callboard.receipt r ON r.entry_id = e.id
    LEFT JOIN LATERAL (
        SELECT k.note FROM callboard.checkpoint k WHERE k.size >= e.audit_id
        ORDER BY k.size LIMIT 1
    ) AS c ON true
    WHERE {{which}} AND e.kind = 'node_payment' AND e.id < :before
        AND (CAST(:viewer AS text) IS NULL OR w.payer_did = :viewer OR {IS_VIEWERS})
    ORDER BY e.id DESC LIMIT :limit OFFSET :offset
"""
_CREDITED: Final = """{0}.kind <> 'protocol_fee' AND {0}.credit_account_id = (
    SELECT a.id FROM callboard.account a WHERE a.address = :wallet)"""
_WHICH: Final = {
    "entry_id": "e.id = CAST(:entry_id AS bigint)",
    "workflow_id": "e.workflow_id = CAST(:workflow_id AS uuid)",
    "wallet": f"""{_CREDITED.format("e")} AND e.id > coalesce((
        SELECT o.id FROM callboard.entry o WHERE {_CREDITED.format("o")} AND o.id < :before
        ORDER BY o.id DESC OFFSET {LOOKED_AT_MAX} LIMIT 1), 0)""",
}
_BEFORE: Final = sql.bindparam("before", type_=sql.BigInteger)
_STATEMENTS: Final = {
    name: sql.text(_ROWS.format(which=which)).bindparams(_BEFORE) for name, which in _WHICH.items()
}
_STORE: Final = sql.text("SELECT * FROM callboard.store_receipts(:key_id, CAST(:receipts AS json))")


async def receipt_rows(
    reader: LedgerReader,
    viewer: str | None,
    *,
    before: int | None = None,
    limit: int = 1,
    offset: int = 0,
    **of: Any,
) -> list[RowDict]:
    """Return the rows from which receipts are built, newest first, with stored texts and
    signatures.

    Args:
        viewer: only receipts of this DID's workflows and agents; None: all.
        before: only receipts with smaller numbers.
        of: one of `entry_id` (the receipt's number), `workflow_id` and `agent_did`. For an agent,
            only its newest `LOOKED_AT_MAX` entries before `before` are searched.
    """
    if "agent_did" in of:
        of = {"wallet": wallet_address(of["agent_did"])}
    (which,) = of
    page = {"before": before or ENTRY_ID_MAX, "limit": limit, "offset": offset}
    return await reader.rows(_STATEMENTS[which], {"viewer": viewer, **page, **of})


class ReceiptStore(OperationalPool):
    """Signs receipts, and stores the first signed text of each receipt.

    Args:
        url: `postgresql://…` of a login that is a member of `ops_writer`.
        reader: reads the ledger's rows.
    """

    name, is_durable = "callboard-receipts", True

    def __init__(self, url: str, reader: LedgerReader) -> None:
        super().__init__(url)
        self._reader = reader

    async def sign(self, rows: Collection[RowDict], keys: DeploymentKeys, *, now_ms: int) -> None:
        """Add the signed text and the signatures to rows of `receipt_rows`; store them if new.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; OVERLOADED, the signing key is being rotated.
        """
        unsigned = {row["entry_id"]: row for row in rows if row["body"] is None}
        for _ in range(_SIGN_TRIES_MAX):
            if not unsigned:
                return
            key = await read_signing_key(self._reader, keys)
            made = [
                {"entry_id": number, **signed_receipt(_members(row, key.key_id, now_ms), key)}
                for number, row in unsigned.items()
            ]
            values = {"key_id": key.key_id, "receipts": write_json(made).decode()}
            for stored in await self.rows(_STORE, values):  # another replica may have signed first
                unsigned.pop(stored["entry_id"]).update(stored)
        if unsigned:
            detail = "the signing key is being rotated"
            raise ServiceError(ErrorCode.OVERLOADED, detail, retry_after_s=1)


def _members(row: RowDict, key_id: str, now_ms: int) -> dict[str, Any]:
    """Return the signed members of a receipt."""
    return {
        "receiptId": f"rcpt_{row['entry_id']}",
        "workflowId": str(row["workflow_id"]),
        "nodeId": row["node_id"],
        "agentDid": row["agent_did"],
        "inputHash": row["input_hash"],
        "outputHash": row["output_hash"],
        "startedAt": iso_ms(row["started_ms"]),
        "completedAt": iso_ms(row["completed_ms"]),
        "computeMs": row["completed_ms"] - row["started_ms"],
        "amountCredits": credits_number(row["amount_micro"]),
        "feeCredits": credits_number(row["fee_micro"]),
        "auditId": row["audit_id"],
        "keyId": key_id,
        "signedAt": iso_ms(now_ms),
    }
