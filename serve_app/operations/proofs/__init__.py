"""Proofs: what agents have signed, and what the deployment signs."""

from __future__ import annotations
