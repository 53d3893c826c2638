"""What a TLS 1.3 server sends to change its key: messages of 27 bytes that each ask for an answer.

A server may send any number, and no library does: so they are made of the session's secret, which
is in the key log of the server's context (RFC 8446, sections 4.6.3, 5.2 and 7.2).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

KEY_UPDATE_BYTES: Final = 27
# The message, which asks for an update of the client's key, and the type of its record.
_MESSAGE: Final = b"\x18\x00\x00\x01\x01\x16"
_HEADER: Final = b"\x17\x03\x03\x00\x16"


def key_updates(key_log: Path, count: int, *, sent: int) -> bytes:
    """Return messages of the server whose handshake was logged last.

    Args:
        sent: how many records it has sent since the handshake.
    """
    secrets = re.findall(r"^SERVER_TRAFFIC_SECRET_0 \w+ (\w+)$", key_log.read_text(), re.MULTILINE)
    secret, records = bytes.fromhex(secrets[-1]), []
    for _ in range(count):
        key, start = _derived(secret, b"key", 32), _derived(secret, b"iv", 12)
        nonce = (int.from_bytes(start, "big") ^ sent).to_bytes(12, "big")
        records.append(_HEADER + AESGCM(key).encrypt(nonce, _MESSAGE, _HEADER))
        secret, sent = _derived(secret, b"traffic upd", 48), 0
    return b"".join(records)


def _derived(secret: bytes, label: bytes, length: int) -> bytes:
    label = b"tls13 " + label
    info = length.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
    return HKDFExpand(SHA384(), length, info).derive(secret)
