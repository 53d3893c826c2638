"""A body that is decoded in steps is what it is when it is decoded at once."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

import pytest

from core.content_coding import BodyDecoder, BodyTooLarge, UndecodableBody

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
    # Its last byte holds more than one step.
    ("deflate", bare(bytes(500)), bytes(500)),
    ("", PLAIN, PLAIN),
]


def in_pieces(body: bytes, size: int) -> Iterator[bytes]:
    """Cut a body."""
    return (body[start : start + size] for start in range(0, len(body), size))


@pytest.mark.parametrize(("coding", "body", "plain"), CODED)
@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
@pytest.mark.parametrize("step_bytes", [1, 2, 13, 256, 10_000])
def test_the_size_of_a_step_makes_no_difference(
    coding: str, body: bytes, plain: bytes, piece_bytes: int, step_bytes: int
) -> None:
    decoder = BodyDecoder(coding, len(plain))
    for piece in in_pieces(body, piece_bytes):
        decoder.put(piece)
        while decoder.has_more:
            before = decoder._size
            decoder.decode(step_bytes)
            assert decoder._size - before <= step_bytes
    assert decoder.finish() == plain


@pytest.mark.parametrize("step_bytes", [1, 10_000])
def test_a_bound_is_passed_in_any_step(step_bytes: int) -> None:
    decoder = BodyDecoder("gzip", len(PLAIN) - 1)
    decoder.put(gzip.compress(PLAIN))
    with pytest.raises(BodyTooLarge):
        decode_all(decoder, step_bytes)


def decode_all(decoder: BodyDecoder, step_bytes: int) -> None:
    """Decode what was put."""
    while decoder.decode(step_bytes):
        pass


@pytest.mark.parametrize("step_bytes", [1, 10_000])
def test_a_body_that_ends_early_is_not_whole(step_bytes: int) -> None:
    decoder = BodyDecoder("gzip", len(PLAIN))
    decoder.put(gzip.compress(PLAIN)[:-1])
    decode_all(decoder, step_bytes)
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
