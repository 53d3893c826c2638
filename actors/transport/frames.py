"""Frames of a connection: plain between processes of one machine, sealed between machines.

A frame is the length of its body, 4 bytes, then the body. A sealed one has its body encrypted and
ends with a MAC, both by AES-256-GCM (NIST SP 800-38D). The MAC covers the frame's sequence number,
which is the nonce, its length and its body, and each direction of each connection has a key of its
own, so no nonce is used twice. The sequence number does not travel: both sides count. So a frame
that is altered, repeated, left out, moved to another place or sent back to its sender fails the
check. Knows no sockets, no handshake. Decision 0205.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

LENGTH: Final = struct.Struct("!I")
PLAIN_BODY_BYTES_MAX: Final = 1 << 30
# The largest body of the API is 16 MiB, most batches are bounded by 128 KiB; what is larger goes by
# a Ray call.
SEALED_BODY_BYTES_MAX: Final = 64 << 20
MAC_BYTES: Final = 16
# The sequence number, in the 12 bytes of a nonce.
_NONCE: Final = struct.Struct("!4xQ")


class FrameTooLarge(Exception):
    """A body above the limit of its frames; nothing of it was sent."""

    def __init__(self, size_bytes: int, bytes_max: int) -> None:
        super().__init__(size_bytes, bytes_max)
        self.size_bytes = size_bytes
        self.bytes_max = bytes_max

    def __str__(self) -> str:
        return f"got a frame of {self.size_bytes} bytes, expected at most {self.bytes_max}"


class FrameForged(Exception):
    """A frame whose MAC is not that of its connection, its direction and its place."""

    def __init__(self, number: int, size_bytes: int) -> None:
        super().__init__(number, size_bytes)
        self.number = number
        self.size_bytes = size_bytes

    def __str__(self) -> str:
        return f"frame {self.number}, {self.size_bytes} bytes, has a wrong MAC"


class Frames(Protocol):
    """How the bodies of one connection are written and read; it counts, so it serves one only."""

    body_bytes_max: int
    tail_bytes: int

    def written(self, body: bytes) -> Sequence[bytes]:
        """Return the pieces of the next frame. Raises `FrameTooLarge`."""

    def opened(self, sealed: memoryview) -> memoryview | bytes:
        """Return the body of the next frame that has arrived. Raises `FrameForged`.

        Args:
            sealed: what follows its length: as many bytes, and `tail_bytes`.
        """


class PlainFrames:
    """Frames that end with their body; the file system says who may connect."""

    body_bytes_max = PLAIN_BODY_BYTES_MAX
    tail_bytes = 0

    def written(self, body: bytes) -> Sequence[bytes]:
        """Return the pieces of a frame. Raises `FrameTooLarge`."""
        if len(body) > PLAIN_BODY_BYTES_MAX:
            raise FrameTooLarge(len(body), PLAIN_BODY_BYTES_MAX)
        return LENGTH.pack(len(body)), body

    def opened(self, sealed: memoryview) -> memoryview | bytes:
        """Return the body of a frame, which is all of it."""
        return sealed


class SealedFrames:
    """Frames that are encrypted, with a sequence number and a MAC.

    Args:
        send_key: 32 bytes, of what this side sends on this connection.
        receive_key: 32 bytes, of what the other side sends.
    """

    body_bytes_max = SEALED_BODY_BYTES_MAX
    tail_bytes = MAC_BYTES

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        self._send = AESGCM(send_key)
        self._receive = AESGCM(receive_key)
        self._sent = 0
        self._received = 0

    def written(self, body: bytes) -> Sequence[bytes]:
        """Return the pieces of the next frame. Raises `FrameTooLarge`."""
        size = len(body)
        if size > SEALED_BODY_BYTES_MAX:
            raise FrameTooLarge(size, SEALED_BODY_BYTES_MAX)
        sealed = self._send.encrypt(_NONCE.pack(self._sent), body, None)
        self._sent += 1
        return LENGTH.pack(size), sealed

    def opened(self, sealed: memoryview) -> memoryview | bytes:
        """Return the body of the next frame that has arrived. Raises `FrameForged`."""
        try:
            body = self._receive.decrypt(_NONCE.pack(self._received), sealed, None)
        except InvalidTag:
            raise FrameForged(self._received, len(sealed) - MAC_BYTES) from None
        self._received += 1
        return body
