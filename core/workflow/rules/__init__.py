"""The rules of a workflow's events: functions that change a `WorkflowState`, grouped by concern.

Imports go in one direction: restoration, revocation → verification → attempts → node_ends,
selection → auction_rounds → payment. The modules history, staking and retry use the state of at
most one node. Decision state-machine-and-recovery.
"""

from __future__ import annotations
