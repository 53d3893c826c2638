"""Bodies are decoded by their coding, within their bound."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

import pytest

from federation.content_coding import BodyDecoder, BodyTooLarge, UndecodableBody

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


def in_pieces(body: bytes, size: int) -> Iterator[bytes]:
    """Cut a body."""
    return (body[start : start + size] for start in range(0, len(body), size))


@pytest.mark.parametrize(("coding", "body", "plain"), CODED)
@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
def test_the_size_of_a_piece_makes_no_difference(
    coding: str, body: bytes, plain: bytes, piece_bytes: int
) -> None:
    decoder = BodyDecoder(coding, len(plain))
    for piece in in_pieces(body, piece_bytes):
        decoder.feed(piece)
    assert decoder.finish() == plain


@pytest.mark.parametrize(("coding", "body", "plain"), CODED)
def test_no_body_is_decoded_past_its_bound(coding: str, body: bytes, plain: bytes) -> None:
    def decode() -> bytes:
        decoder = BodyDecoder(coding, len(plain) - 1)
        decoder.feed(body)
        return decoder.finish()

    with pytest.raises(BodyTooLarge):
        decode()


def test_a_body_that_ends_early_is_not_whole() -> None:
    decoder = BodyDecoder("gzip", len(PLAIN))
    decoder.feed(gzip.compress(PLAIN)[:-1])
    with pytest.raises(UndecodableBody):
        decoder.finish()


@pytest.mark.parametrize("coding", ["", "identity", "none", "utf-8", "UTF-8 ", "br", "x, y"])
def test_a_coding_that_is_not_known_is_ignored_over_a_json_object(coding: str) -> None:
    for body in (b'{"a": 1}', b' \r\n{"a"', b"\xef\xbb\xbf{}", b""):
        decoder = BodyDecoder(coding, 100)
        decoder.feed(body)
        assert decoder.finish() == body


@pytest.mark.parametrize("coding", ["br", "zstd", "utf-8", "gzip, br"])
def test_a_coding_that_is_not_known_is_named_over_anything_else(coding: str) -> None:
    decoder = BodyDecoder(coding, 100)
    decoder.feed(b"\x8b\x00\x80")
    with pytest.raises(UndecodableBody, match=f"Content-Encoding '{coding}' is not known"):
        decoder.finish()
