"""The rules of a workflow's events: functions over a `WorkflowState`, one concern in each module.

Imports go one way: restoration, revocation → verification → attempts → ends, selection →
auction_rounds → payment; history, staking and retry know one node only. Decision
state-machine-and-recovery.
"""

from __future__ import annotations
