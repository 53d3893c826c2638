"""How large a request may be, and how slowly a client may send it or take the reply.

Measured by the event loop's monotonic clock. Decision http-edge.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.records.bounds import BULK_ITEMS_MAX


@dataclass(frozen=True, slots=True)
class Pace:
    """`timeout_s` for any transfer, and one second more for every `rate_min` bytes of it."""

    timeout_s: float = 10.0
    rate_min: int = 64 * 1024

    def end(self, began: float, moved: int) -> float:
        """Return when a transfer is too slow, by the clock of `began`, in seconds.

        Args:
            moved: bytes so far.
        """
        return began + self.timeout_s + moved / self.rate_min


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """How large a request's body may be, and how deeply it may nest.

    Attributes:
        body_bytes_max: of a body, or of an item of a bulk request.
        bulk_body_bytes_max: of the body of a bulk request.
        bulk_items_max: manifests or cards in one bulk request.
        json_depth_max: levels of objects and arrays.
    """

    body_bytes_max: int = 512 * 1024
    bulk_body_bytes_max: int = 16 * 1024 * 1024
    bulk_items_max: int = BULK_ITEMS_MAX
    json_depth_max: int = 64
