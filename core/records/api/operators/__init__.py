"""What operators send and are answered: keys, health, the cluster."""

from __future__ import annotations
