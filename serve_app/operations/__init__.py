"""The operations of the API: one package per kind of resource."""

from __future__ import annotations
