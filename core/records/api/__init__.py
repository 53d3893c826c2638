"""What requests and replies hold, declared once for the service, its document and its clients."""

from __future__ import annotations
