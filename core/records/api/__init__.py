"""The members of requests and replies, declared once for the service, OpenAPI and the clients."""

from __future__ import annotations
