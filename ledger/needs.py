"""What planning a batch looks at: collected from its commands, read by `loading.py` beforehand.

Plain sets of keys; what is behind them is in the books. money.md section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Needs:
    """Addresses, escrows, agents, keys, owners to claim from.

    `ending` are the workflows that may end: their payers' wallets are needed too.
    """

    addresses: set[str] = field(default_factory=set)
    workflow_ids: set[str] = field(default_factory=set)
    ending: set[str] = field(default_factory=set)
    agent_dids: set[str] = field(default_factory=set)
    key_ids: set[str] = field(default_factory=set)
    claimed_owners: set[str] = field(default_factory=set)
