"""Operations on the service itself: health, metrics, keys, the cluster, the audit chain."""

from __future__ import annotations
