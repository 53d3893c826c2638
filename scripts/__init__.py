"""Small programs for people who work on the project."""

from __future__ import annotations
