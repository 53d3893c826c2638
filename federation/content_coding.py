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


def decode_body(body: bytes, coding: str, bytes_max: int) -> bytes:
    """Return a decoded body; an empty body is returned without decoding.

    Args:
        coding: the value of `Content-Encoding`, "" without this header.
        bytes_max: the bound of the encoded and of the decoded body, bytes.

    Raises:
        UndecodableBody: the body is not in its coding, ends too early or too late, or has an
            unknown coding and does not begin like a JSON object.
        BodyTooLarge: the encoded or the decoded body is larger than the bound.
    """
    if len(body) > bytes_max:
        raise BodyTooLarge(f"more than {bytes_max} bytes")
    named = coding.strip().lower()
    if named in _DECODED:
        return _decoded(body, named, bytes_max)
    if named not in _PLAIN and body and not _JSON_OBJECT.match(body):
        raise UndecodableBody(f"Content-Encoding {named[:_SHOWN_CHARS]!r} is not known")
    return body


def _decoded(rest: bytes, coding: str, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    is_gzip, size = coding in _GZIP_NAMES, 0
    while rest:
        if len(parts) == (MEMBERS_MAX if is_gzip else 1):
            raise UndecodableBody(f"the {coding} body goes on after its end")
        # The standard requires a zlib stream, but about half of all servers send raw deflate.
        is_zlib = rest[0] & 0x0F == zlib.DEFLATED
        stream = zlib.decompressobj(_GZIP if is_gzip else _ZLIB if is_zlib else _RAW)
        try:
            # Decode one byte more than the bound, to detect a larger body.
            part = stream.decompress(rest, bytes_max - size + 1)
        except zlib.error as error:
            raise UndecodableBody(f"the body is not {coding}: {error}") from None
        size += len(part)
        if size > bytes_max:
            raise BodyTooLarge(f"decodes to more than {bytes_max} bytes")
        if not stream.eof:
            raise UndecodableBody(f"the body ends in the middle of its {coding}")
        parts.append(part)
        rest = stream.unused_data
    return b"".join(parts)
