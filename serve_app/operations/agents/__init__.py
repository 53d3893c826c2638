"""Operations on agents: cards, heartbeats, stakes, prices, revocations."""

from __future__ import annotations
