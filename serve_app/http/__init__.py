"""HTTP request handling that all operations share: endpoint, calls, bodies, lists, errors."""

from __future__ import annotations
