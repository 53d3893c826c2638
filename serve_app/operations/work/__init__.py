"""Operations on work: workflows, results, tasks, auctions, feedback."""

from __future__ import annotations
