"""The way of a request, the same for all operations: endpoint, calls, bodies, lists, errors."""

from __future__ import annotations
