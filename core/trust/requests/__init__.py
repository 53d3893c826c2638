"""Signatures over HTTP requests (RFC 9421), for the client and the service."""

from __future__ import annotations
