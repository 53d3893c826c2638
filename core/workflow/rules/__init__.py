"""What a workflow's events mean: one concern in each module."""

from __future__ import annotations
