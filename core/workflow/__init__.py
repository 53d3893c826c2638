"""The engine: states, graphs and the machine that drives them. Decides, never acts."""

from __future__ import annotations
