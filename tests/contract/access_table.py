"""Which rights open each operation, as the tests say: held against the HTTP reference by hand,
and never read from the code's declarations.

An operation that is not here has to need the scope that its path names: `agents:read` for a GET
below `/v1/agents`, `agents:write` for another method. `admin` opens all of them.
"""

from __future__ import annotations

import re
from typing import Final

# Answered without a key. Of the first, what is no key at all is refused; of the others none is
# looked at.
PUBLIC: Final = """
    GET /v1/agents
    GET /v1/agents/{did}
    GET /v1/agent/{did}
    GET /.well-known/callboard.json
    POST /v1/hooks/{token}
"""
EXEMPT: Final = """
    POST /v1/workflows/nodeResult
    GET /health
    GET /ready
    GET /openapi.json
    GET /
    GET /docs
"""
# By the rights of which one is enough, "" for `admin` alone.
_RIGHTS: Final = {
    "": """
        GET /v1/cluster
        POST /v1/cluster/machines/{machine}/drain
        POST /v1/cluster/machines/{machine}/resume
        POST /v1/invoices/{invoice_id}/pay
        POST /v1/invoices/{invoice_id}/void
        GET /v1/ledger/check
        POST /v1/ledger/check
        POST /v1/reputation/rebuild
        POST /v1/stakes/slash
        POST /v1/trust/signing-key/rotate
    """,
    "agents:heartbeat agents:write": """
        POST /v1/agents/{did}/heartbeat
        POST /v1/heartbeat
    """,
    "agents:read": """
        POST /v1/agent/discovery
        GET /v1/agents/{did}/names
        GET /v1/discover
        GET /v1/agents/{did}/versions
        GET /v1/reputation/{did}
        GET /v1/stakes/{did}
    """,
    "agents:write": """
        POST /v1/agents/{did}/collect
        POST /v1/agent/register
        POST /v1/agents/register
        POST /v1/agents/register/bulk
        PATCH /v1/agents/{did}
        DELETE /v1/agents/{did}
        POST /v1/stakes
        POST /v1/stakes/unstake
    """,
    "audit:read": """
        GET /v1/audit
        GET /v1/audit/{audit_id}
        GET /v1/audit/checkpoint
        GET /v1/audit/consistency
        GET /v1/audit/export
        GET /v1/audit/proof
        GET /v1/audit/verify
        GET /v1/events/stream
    """,
    "capabilities:read": """
        GET /v1/capabilities/{capability_id}/price
        GET /v1/capabilities/{capability_id}/versions
        GET /v1/capabilities/{capability_id}/versions/{version}
        POST /v1/capabilities/negotiate
    """,
    "capabilities:write": """
        POST /v1/capabilities/versions
        POST /v1/capabilities/{capability_id}/versions/{version}/deprecate
    """,
    "disputes:resolve": """
        POST /v1/disputes/{dispute_id}/resolve
    """,
    "federation:write": """
        POST /v1/federation/policies
        DELETE /v1/federation/policies/{policy_id}
        POST /v1/federation/subnets
        DELETE /v1/federation/subnets/{subnet_id}
        POST /v1/federation/subnets/{subnet_id}/members
        DELETE /v1/federation/subnets/{subnet_id}/members
    """,
    "identity:read": """
        GET /v1/identity/guardians/{did}
        GET /v1/identity/inheritance/{did}
        GET /v1/identity/names/{name}
        GET /v1/identity/recover/{recovery_id}
    """,
    "identity:write": """
        PUT /v1/identity/guardians/{did}
        POST /v1/identity/inheritance
        DELETE /v1/identity/inheritance/{did}
        POST /v1/identity/names
        DELETE /v1/identity/names/{name}
        POST /v1/identity/names/{name}/renew
        POST /v1/identity/names/{name}/transfer
        POST /v1/identity/recover
        POST /v1/identity/recover/{recovery_id}/cancel
    """,
    "keys:read": """
        GET /v1/keys
    """,
    "keys:write": """
        POST /v1/keys
        DELETE /v1/keys/{key_id}
        POST /v1/keys/{key_id}/rotate
    """,
    "ledger:deposit": """
        POST /v1/ledger/deposit
    """,
    "ledger:read": """
        GET /v1/balances/{did}
        GET /v1/disputes
        GET /v1/disputes/{dispute_id}
        GET /v1/invoices
        GET /v1/invoices/{invoice_id}
        GET /v1/ledger/accounts/{did}
        GET /v1/ledger/balance
        GET /v1/ledger/transactions
        GET /v1/ledger/{did}/history
        GET /v1/quotas/{did}
        POST /v1/quotas/{did}/check
    """,
    "ledger:write": """
        POST /v1/disputes
        POST /v1/invoices
    """,
    "metrics:read": """
        GET /metrics
    """,
    "prices:write": """
        PUT /v1/capabilities/{capability_id}/price
    """,
    "quotas:write": """
        POST /v1/quotas/{did}
    """,
    "schedules:read": """
        GET /v1/schedules
        GET /v1/schedules/{schedule_id}
        GET /v1/schedules/{schedule_id}/next
        GET /v1/schedules/{schedule_id}/runs
        GET /v1/triggers
        GET /v1/triggers/{trigger_id}
        GET /v1/triggers/{trigger_id}/runs
    """,
    # What starts workflows needs `workflows:write` as well (test_schedules.py).
    "schedules:write": """
        POST /v1/schedules
        PATCH /v1/schedules/{schedule_id}
        DELETE /v1/schedules/{schedule_id}
        POST /v1/schedules/{schedule_id}/trigger
        PATCH /v1/triggers/{trigger_id}
        DELETE /v1/triggers/{trigger_id}
    """,
    "trust:read": """
        GET /v1/revoked
        GET /v1/revoked/{did}
        GET /v1/trust/key-history/{did}
        GET /v1/trust/signed-results/{workflow_id}
        POST /v1/signed-results/{node}/verify
        GET /v1/receipts/{receipt}
        GET /v1/receipts/workflow/{workflow_id}
        POST /v1/receipts/verify
    """,
    "trust:write": """
        POST /v1/trust/rotate-key
        POST /v1/receipts
    """,
    "trust:write trust:revoke": """
        DELETE /v1/revoked/{did}
        POST /v1/trust/revoke
    """,
    "federation:admin": """
        POST /v1/federation/peers
        DELETE /v1/federation/peers/{peer_id}
        POST /v1/federation/peers/heartbeat
        GET /v1/federation/peers/{peer_id}/statement
        GET /v1/federation/peers/{peer_id}/balance
        GET /v1/federation/peers/{peer_id}/check
        POST /v1/federation/peers/{peer_id}/settle
    """,
    # Peers have it (test_peers.py).
    "federation:admin federation:trust": """
        GET /v1/federation/trust-events
    """,
    "federation:read": """
        GET /v1/federation/peers
        GET /v1/federation/peers/{peer_id}
        GET /v1/federation/policies
        GET /v1/federation/subnets
        GET /v1/federation/subnets/{subnet_id}
        GET /v1/federation/route/{capability_id}
    """,
    "webhooks:read": """
        GET /v1/webhooks
        GET /v1/webhooks/{webhook_id}
        GET /v1/webhooks/{webhook_id}/deliveries
    """,
    # What sends events needs `audit:read` as well (test_webhooks.py).
    "webhooks:write": """
        POST /v1/webhooks
        PATCH /v1/webhooks/{webhook_id}
        DELETE /v1/webhooks/{webhook_id}
        POST /v1/webhooks/{webhook_id}/test
        POST /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver
    """,
    "workflows:read workflows:suggest": """
        POST /v1/workflows/suggest
    """,
    "workflows:read": """
        GET /v1/auctions/{workflow_id}/{node}
        GET /v1/tasks/{task_id}
        GET /v1/traces/{trace_id}
        GET /v1/workflows
        GET /v1/workflows/{workflow_id}
        GET /v1/workflows/{workflow_id}/budget
        GET /v1/workflows/{workflow_id}/escrow
        GET /v1/workflows/{workflow_id}/nodes/{node}/result
        GET /v1/workflows/{workflow_id}/stream
    """,
    "workflows:write": """
        POST /v1/auctions/{workflow_id}/{node}/bids
        POST /v1/tasks/publish
        POST /v1/tasks/{task_id}/bid
        POST /v1/tasks/{task_id}/feedback
        POST /v1/tasks/{task_id}/settle
        POST /v1/workflows
        POST /v1/workflows/publish
        POST /v1/workflows/publish/bulk
        POST /v1/workflows/{workflow_id}/cancel
        POST /v1/workflows/{workflow_id}/feedback
        POST /v1/workflows/{workflow_id}/resume
    """,
}


def operations_of(text: str) -> set[str]:
    """Return the operations that a text lists, one a line."""
    return {line.strip() for line in text.splitlines() if line.strip()}


# By operation: the rights of which one opens it, besides `admin`; none for a public one.
RIGHTS_OF: Final[dict[str, frozenset[str] | None]] = {
    **{
        operation: frozenset(rights.split())
        for rights, text in _RIGHTS.items()
        for operation in operations_of(text)
    },
    **dict.fromkeys(operations_of(PUBLIC + EXEMPT)),
}


def rights_of(operation: str) -> frozenset[str] | None:
    """Return the rights of which one opens an operation, besides `admin`; None for a public one."""
    if operation in RIGHTS_OF:
        return RIGHTS_OF[operation]
    method, _version, resource, *_ = re.split("[ /]+", operation)
    return frozenset({f"{resource}:{'read' if method == 'GET' else 'write'}"})
