"""Decodes the content codings of HTTP bodies (gzip, deflate) with a bound on the decoded size.

A few kilobytes can decode to gigabytes, so decoding stops at the bound. An unknown coding is
ignored if the body begins like a JSON object, because some servers send `utf-8` or `none` as the
coding. Pure. Reference: features.md (Dispatch); RFC 9110 section 8.4.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

# Values of zlib's `wbits` for a gzip member, a zlib stream, and a raw deflate stream.
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_GZIP_NAMES: Final = ("gzip", "x-gzip")
_DECODED: Final = ("deflate", *_GZIP_NAMES)
_PLAIN: Final = ("", "identity", "none")
_JSON_OBJECT: Final = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{")
# Each gzip member needs a decoder, even a tiny one, and bodies rarely have several members.
MEMBERS_MAX: Final = 16
_SHOWN_CHARS: Final = 40


class UndecodableBody(ValueError):
    """A body is not in the coding that its header names."""


class BodyTooLarge(ValueError):
    """A body is larger than its bound, before or after decoding."""


class BodyDecoder:
    """Collects one body in pieces, and decodes the whole body.

    Args:
        coding: the value of `Content-Encoding`, "" without this header.
        bytes_max: the bound of the encoded and of the decoded body, bytes.
    """

    def __init__(self, coding: str, bytes_max: int) -> None:
        self._named = coding.strip().lower()
        self._coding = self._named if self._named in _DECODED else ""
        self._bytes_max = bytes_max
        self._received = self._members = 0
        self._parts: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        """Add the next piece of the body.

        Raises:
            BodyTooLarge: the encoded body is larger than the bound.
        """
        self._received += len(piece)
        if self._received > self._bytes_max:
            raise BodyTooLarge(f"more than {self._bytes_max} bytes")
        self._parts.append(piece)

    def finish(self) -> bytes:
        """Return the whole decoded body; an empty body is returned without decoding.

        Raises:
            UndecodableBody: the body is not in its coding, ends too early or too late, or has an
                unknown coding and does not begin like a JSON object.
            BodyTooLarge: the decoded body is larger than the bound.
        """
        body = b"".join(self._parts)
        if self._coding:
            return self._decoded(body)
        if self._named not in _PLAIN and body and not _JSON_OBJECT.match(body):
            raise UndecodableBody(f"Content-Encoding {self._named[:_SHOWN_CHARS]!r} is not known")
        return body

    def _decoded(self, rest: bytes) -> bytes:
        parts, size = [], 0
        while rest:
            stream = self._next_stream(rest)
            try:
                # Decode one byte more than the bound, to detect a larger body.
                part = stream.decompress(rest, self._bytes_max - size + 1)
            except zlib.error as error:
                raise UndecodableBody(f"the body is not {self._coding}: {error}") from None
            size += len(part)
            if size > self._bytes_max:
                raise BodyTooLarge(f"decodes to more than {self._bytes_max} bytes")
            if not stream.eof:
                raise UndecodableBody(f"the body ends in the middle of its {self._coding}")
            parts.append(part)
            rest = stream.unused_data
        return b"".join(parts)

    def _next_stream(self, piece: bytes) -> zlib._Decompress:
        self._members += 1
        is_gzip = self._coding in _GZIP_NAMES
        if self._members > (MEMBERS_MAX if is_gzip else 1):
            raise UndecodableBody(f"the {self._coding} body goes on after its end")
        if is_gzip:
            return zlib.decompressobj(_GZIP)
        # The standard requires a zlib stream, but about half of all servers send raw deflate.
        is_zlib = piece[0] & 0x0F == zlib.DEFLATED
        return zlib.decompressobj(_ZLIB if is_zlib else _RAW)
