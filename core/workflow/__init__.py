"""The engine's rules: the states, the graph and the state machine of a workflow. Pure."""

from __future__ import annotations
