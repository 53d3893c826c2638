"""Operations on proofs: results that agents signed, and receipts that the deployment signs."""

from __future__ import annotations
