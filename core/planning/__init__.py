"""Drafts of workflows from descriptions: deterministic, without a model and without a network."""

from __future__ import annotations
