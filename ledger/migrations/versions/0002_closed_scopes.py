"""Keys carry rights of a closed list: wildcards are written out, smaller resources take their own.

What a key could do it still can, and nothing more: `quotas:write` was a resource's scope and is now
an operator's right, so a key that has it gets the resource instead. Decision 0123.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "0002"
down_revision = "0001"

# As they are at this revision; later ones do not change what this one has done.
_RESOURCES = (
    "workflows", "agents", "capabilities", "ledger", "trust", "identity", "schedules", "webhooks",
    "audit", "federation", "keys",
)  # fmt: skip
_NOW_OF = {
    "tasks": "workflows", "auctions": "workflows", "feedback": "workflows", "invoices": "ledger",
    "disputes": "ledger", "quotas": "ledger", "balances": "ledger", "stakes": "agents",
    "reputation": "agents", "discovery": "agents", "revoked": "trust",
}  # fmt: skip
_KEPT = ("ledger:deposit", "agents:heartbeat", "admin")


def rights_of(scopes: list[str]) -> list[str]:
    """Return the rights that a key of before has from now on, in the order of the list."""
    found: dict[str, None] = {}
    for scope in scopes:
        resource, _, verb = scope.partition(":")
        if scope in _KEPT:
            found[scope] = None
        elif verb in ("read", "write"):
            names = _RESOURCES if resource == "*" else (_NOW_OF.get(resource, resource),)
            found.update((f"{name}:{verb}", None) for name in names if name in _RESOURCES)
    return list(found)


def upgrade() -> None:
    """Write out every key's scopes."""
    connection = op.get_bind()
    rows = connection.execute(text("SELECT id, scopes FROM callboard.api_key")).all()
    for key_id, scopes in rows:
        connection.execute(
            text("UPDATE callboard.api_key SET scopes = :scopes WHERE id = :id"),
            {"id": key_id, "scopes": rights_of(scopes)},
        )


def downgrade() -> None:
    """Refuse: an audited ledger is never taken down by a migration."""
    raise NotImplementedError("the ledger's tables are append-only; drop the database instead")
