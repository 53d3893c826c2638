"""Tests of the engine's rules."""

from __future__ import annotations
