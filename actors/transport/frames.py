"""Frames of a connection: plain between processes of one machine, sealed between machines.

A frame is the length of its body, 4 bytes, then the body; a sealed one ends with a MAC. The MAC
covers the frame's sequence number, its length and its body, and each direction has a key of its
own. The sequence number does not travel: both sides count. So a frame that is altered, repeated,
left out, moved to another place or sent back to its sender fails the check. Knows no sockets, no
handshake. Decision 0205.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Final, Protocol

LENGTH: Final = struct.Struct("!I")
PLAIN_BODY_BYTES_MAX: Final = 1 << 30
# The largest body of the API is 16 MiB, most batches are bounded by 128 KiB; what is larger goes by
# a Ray call.
SEALED_BODY_BYTES_MAX: Final = 64 << 20
MAC_BYTES: Final = 16
_COVERED: Final = struct.Struct("!QI")


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

    def check(self, body: memoryview, tail: memoryview) -> None:
        """Check the next frame that has arrived. Raises `FrameForged`."""


class PlainFrames:
    """Frames that end with their body; the file system says who may connect."""

    body_bytes_max = PLAIN_BODY_BYTES_MAX
    tail_bytes = 0

    def written(self, body: bytes) -> Sequence[bytes]:
        """Return the pieces of a frame. Raises `FrameTooLarge`."""
        if len(body) > PLAIN_BODY_BYTES_MAX:
            raise FrameTooLarge(len(body), PLAIN_BODY_BYTES_MAX)
        return LENGTH.pack(len(body)), body

    def check(self, body: memoryview, tail: memoryview) -> None:
        """Accept every frame."""


class SealedFrames:
    """Frames with a sequence number and a MAC, BLAKE2b of 16 bytes.

    Args:
        send_key: 32 bytes, of what this side sends on this connection.
        receive_key: 32 bytes, of what the other side sends.
    """

    body_bytes_max = SEALED_BODY_BYTES_MAX
    tail_bytes = MAC_BYTES

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        # Keyed once and copied for each frame.
        self._send = hashlib.blake2b(key=send_key, digest_size=MAC_BYTES)
        self._receive = hashlib.blake2b(key=receive_key, digest_size=MAC_BYTES)
        self._sent = 0
        self._received = 0

    def written(self, body: bytes) -> Sequence[bytes]:
        """Return the pieces of the next frame. Raises `FrameTooLarge`."""
        size = len(body)
        if size > SEALED_BODY_BYTES_MAX:
            raise FrameTooLarge(size, SEALED_BODY_BYTES_MAX)
        mac = self._send.copy()
        mac.update(_COVERED.pack(self._sent, size))
        mac.update(body)
        self._sent += 1
        return LENGTH.pack(size), body, mac.digest()

    def check(self, body: memoryview, tail: memoryview) -> None:
        """Check the next frame that has arrived, in constant time. Raises `FrameForged`."""
        mac = self._receive.copy()
        mac.update(_COVERED.pack(self._received, len(body)))
        mac.update(body)
        if not hmac.compare_digest(mac.digest(), tail):
            raise FrameForged(self._received, len(body))
        self._received += 1
