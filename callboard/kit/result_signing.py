"""An agent's signature over its results. Reference: features.md (Signed results)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from nacl.signing import SigningKey

from callboard.location import read_seed
from core.jcs import jcs
from core.trust.signatures import result_message


class ResultSigner:
    """Signs results with an Ed25519 key.

    Args:
        private_key: base64 of the key's 32 bytes, with or without the prefix `ed25519:`; or PEM; or
            the path of a file with one of these.

    Raises:
        ValueError: the private key is invalid.
    """

    def __init__(self, private_key: str) -> None:
        self._key = SigningKey(read_seed(private_key))

    @property
    def public_key(self) -> str:
        """Base64 of the public key, for the agent's card."""
        return base64.b64encode(bytes(self._key.verify_key)).decode()

    @property
    def private_key(self) -> str:
        """Base64 of the private key."""
        return base64.b64encode(bytes(self._key)).decode()

    def signature(self, node_id: str, workflow_id: str, result: Mapping[str, Any]) -> str:
        """Return the signature over a node's result, base64 with the prefix `ed25519:`.

        Raises:
            ValueError: the result has no canonical form.
        """
        result_hash = "sha256:" + hashlib.sha256(jcs(result)).hexdigest()
        signed = self._key.sign(result_message(node_id, workflow_id, result_hash))
        return "ed25519:" + base64.b64encode(signed.signature).decode()
