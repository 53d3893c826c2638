"""The operations of the API, in a room per kind of resource."""

from __future__ import annotations
