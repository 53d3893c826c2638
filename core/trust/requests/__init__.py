"""Signatures over HTTP requests (RFC 9421), as both sides make them."""

from __future__ import annotations
