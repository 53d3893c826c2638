"""Who calls, and how much of a replica and of a minute they may have."""

from __future__ import annotations
