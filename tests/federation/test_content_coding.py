"""Bodies are decoded by their coding, within their bound."""

from __future__ import annotations

import gzip
import zlib

import pytest

from federation.content_coding import BodyTooLarge, UndecodableBody, decode_body

PLAIN = bytes(range(256)) * 4 + bytes(3_000)


def bare(plain: bytes) -> bytes:
    """Return a deflate stream without a header and an end, as half of all servers send it."""
    stream = zlib.compressobj(level=1, wbits=-zlib.MAX_WBITS)
    return stream.compress(plain) + stream.flush()


CODED = [
    ("gzip", gzip.compress(PLAIN), PLAIN),
    ("gzip", gzip.compress(PLAIN[:100]) + gzip.compress(PLAIN[100:]), PLAIN),
    ("deflate", zlib.compress(PLAIN), PLAIN),
    ("deflate", bare(PLAIN), PLAIN),
    # It is small, and decodes to much.
    ("deflate", bare(bytes(500)), bytes(500)),
    ("", PLAIN, PLAIN),
]


@pytest.mark.parametrize(("coding", "body", "plain"), CODED)
def test_body_is_decoded_up_to_its_bound(coding: str, body: bytes, plain: bytes) -> None:
    assert decode_body(body, coding, len(plain)) == plain


@pytest.mark.parametrize(("coding", "body", "plain"), CODED)
def test_no_body_is_decoded_past_its_bound(coding: str, body: bytes, plain: bytes) -> None:
    with pytest.raises(BodyTooLarge):
        decode_body(body, coding, len(plain) - 1)


def test_a_body_that_ends_early_is_not_whole() -> None:
    with pytest.raises(UndecodableBody):
        decode_body(gzip.compress(PLAIN)[:-1], "gzip", len(PLAIN))


@pytest.mark.parametrize("coding", ["", "identity", "none", "utf-8", "UTF-8 ", "br", "x, y"])
def test_a_coding_that_is_not_known_is_ignored_over_a_json_object(coding: str) -> None:
    for body in (b'{"a": 1}', b' \r\n{"a"', b"\xef\xbb\xbf{}", b""):
        assert decode_body(body, coding, 100) == body


@pytest.mark.parametrize("coding", ["br", "zstd", "utf-8", "gzip, br"])
def test_a_coding_that_is_not_known_is_named_over_anything_else(coding: str) -> None:
    with pytest.raises(UndecodableBody, match=f"Content-Encoding '{coding}' is not known"):
        decode_body(b"\x8b\x00\x80", coding, 100)
