"""What proves what happened: the deployment's signing keys, receipts, checkpoints."""

from __future__ import annotations
