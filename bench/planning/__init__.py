"""How well descriptions are planned: cases with the graphs that are expected."""

from __future__ import annotations
