"""The operations of the API, one file per resource."""

from __future__ import annotations
