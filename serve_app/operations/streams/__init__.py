"""Streams of audit entries as server-sent events."""

from __future__ import annotations
