"""Drafts of workflows from descriptions: by matching words, or from the reply of a model."""

from __future__ import annotations
