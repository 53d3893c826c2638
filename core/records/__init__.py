"""The specification's records, one file per resource. JSON is parsed and checked here, once."""

from __future__ import annotations
