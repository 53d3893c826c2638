"""Operations on the service itself: health, keys, the audit chain."""

from __future__ import annotations
