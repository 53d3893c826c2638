"""What code costs in virtual CPU time, and the parts of an owner that charge it.

Round figures in microseconds, near what was measured on the development machine; what counts is
that each item costs something, so that a thousand items in one loop turn are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from actors.directory.auction_candidates import AuctioningDirectory
from actors.ports import AskingPrices
from core.workflow.actions import SelectAgent, SelectBidder, SelectVerifier
from core.workflow.events import AgentNotSelected, AgentSelected, VerifierSelected

Charge = Callable[[int], None]

ESTIMATED_NODE_US: Final = 5
SELECTED_AGENT_US: Final = 20
COMMAND_US: Final = 30
RECORD_US: Final = 5
OUTCOME_US: Final = 10
DISPATCH_US: Final = 40
ABORT_US: Final = 20
COMPILED_NODE_US: Final = 20
RESTORED_ROW_US: Final = 30
REVOCATION_US: Final = 1


class ChargedDirectory(AuctioningDirectory):
    """The real directory; every look into it costs. `fault` may raise as an agent is chosen."""

    def __init__(self, charge: Charge, fault: Callable[[str], None], **directory: Any) -> None:
        super().__init__(**directory)
        self._charge = charge
        self._fault = fault

    def asking_prices(
        self, capability_id: str, target_agent_id: str | None, *, payer_did: str = ""
    ) -> AskingPrices:
        """As the directory's, at a cost."""
        self._charge(ESTIMATED_NODE_US)
        return super().asking_prices(capability_id, target_agent_id, payer_did=payer_did)

    def select(
        self, action: SelectAgent, at_ms: int, *, payer_did: str = ""
    ) -> AgentSelected | AgentNotSelected:
        """As the directory's, at a cost."""
        self._charge(SELECTED_AGENT_US)
        self._fault("select")
        return super().select(action, at_ms, payer_did=payer_did)

    def select_bidder(
        self, action: SelectBidder, at_ms: int, *, payer_did: str = ""
    ) -> AgentSelected | AgentNotSelected:
        """As the directory's, at a cost."""
        self._charge(SELECTED_AGENT_US)
        return super().select_bidder(action, at_ms, payer_did=payer_did)

    def select_verifier(
        self, action: SelectVerifier, at_ms: int, *, payer_did: str = ""
    ) -> VerifierSelected | AgentNotSelected:
        """As the directory's, at a cost."""
        self._charge(SELECTED_AGENT_US)
        return super().select_verifier(action, at_ms, payer_did=payer_did)

    def is_revoked(self, did: str, at_ms: int) -> bool:
        """As the directory's, at a cost."""
        self._charge(REVOCATION_US)
        return super().is_revoked(did, at_ms)


class ChargedRow(dict[str, Any]):
    """A row that costs something as its `paid_by` column is read, which a restore does once."""

    __slots__ = ("_charge", "_column", "_us")

    def __init__(self, row: dict[str, Any], charge: Charge, column: str, us: int) -> None:
        super().__init__(row)
        self._charge, self._column, self._us = charge, column, us

    def __getitem__(self, name: str) -> Any:
        if name == self._column:
            self._charge(self._us)
        return super().__getitem__(name)


def workflow_row(row: dict[str, Any], charge: Charge) -> ChargedRow:
    """Return a workflow's row; its manifest costs what compiling it costs."""
    nodes = row["manifest"].count('"capabilityId"') if row["manifest"] else 0
    return ChargedRow(row, charge, "manifest", RESTORED_ROW_US + nodes * COMPILED_NODE_US)


def node_row(row: dict[str, Any], charge: Charge) -> ChargedRow:
    """Return a node's row as restoring it costs."""
    return ChargedRow(row, charge, "result_json", RESTORED_ROW_US)
