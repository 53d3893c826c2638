"""Authentication of callers, rate limits, and admission control of a replica."""

from __future__ import annotations
