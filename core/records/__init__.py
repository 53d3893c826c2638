"""The records of the specification, one file per resource: JSON at the edge, checked once."""

from __future__ import annotations
