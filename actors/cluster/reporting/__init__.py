"""Tasks of the timekeeper that report on the deployment: books, metrics, audit log, traces."""

from __future__ import annotations
