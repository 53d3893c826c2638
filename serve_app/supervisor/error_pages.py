"""What HAProxy answers by itself: problem details like every refusal, in files and in its program.

Theory of operation: HAProxy reads the reply to each of its own errors from a file (`errorfile`),
but for what it finds while it parses a request. There 2.8 sends a text of its program (`mux_h1.c`,
`h1_send_error`); 3.5 reads the files there, too. So the copy that runs has other texts:
they are written over the old ones, one after the other, and the pointers are set to them. A program
in which the texts are not found as expected is left as it is. Decision http-edge.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Final

from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from serve_app.http.errors import STATUS, problem_headers, problem_text, title
from serve_app.supervisor.reply_headers import security_headers

# Serve has HAProxy's buffer at 16 KiB, of which 1 KiB is kept for what is added to a request.
HEAD_BYTES_MAX: Final = 15 * 1_024
BODY_MAX: Final = 65_536
_BROKEN: Final = (
    ErrorCode.INVALID_REQUEST,
    "got a request that is not valid HTTP/1.1; expected one request line, header lines without"
    f" contradictions, {HEAD_BYTES_MAX} bytes at most, and no chunked body with this method",
)
_LOST: Final = (
    ErrorCode.INTERNAL_ERROR,
    "the connection inside the service ended before its reply; the outcome of a change is unknown:"
    " repeat it with the same Idempotency-Key",
)
_PROGRAM_TEXT: Final = re.compile(rb"HTTP/1\.1 ([45]\d\d) [^\0]*\r\n\r\n[^\0]*\0+")
# Of a 64-bit ELF file: where its table of segments is, and a segment's type, offset and address.
_TABLE: Final = struct.Struct("<32xQ14xHH")
_SEGMENT: Final = struct.Struct("<IIQQQQ")
_LOADED: Final = 1


# How long HAProxy waits for a request's headers and its first 16 KiB, seconds.
HEADER_S: Final = 10


def own_refusals() -> dict[int, tuple[ErrorCode, str]]:
    """Return the refusal in place of each of HAProxy's errors, by HAProxy's status."""
    late = f"the request was not complete after {HEADER_S} s"
    return {
        400: _BROKEN,
        408: (ErrorCode.REQUEST_TIMEOUT, late),
        413: (
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"this method takes a body of at most {BODY_MAX} bytes",
        ),
        500: _LOST,
        502: _LOST,
        503: (ErrorCode.OVERLOADED, "no replica of the API is ready: repeat the request"),
        504: _LOST,
    }


def page(refusal: tuple[ErrorCode, str], settings: Settings) -> bytes:
    """Return the whole reply of a refusal."""
    error = ServiceError(*refusal)
    body = problem_text(error, "")
    more = [
        *((name.decode(), text.decode()) for name, text in problem_headers(error)),
        *security_headers(settings),
    ]
    lines = [
        f"HTTP/1.1 {STATUS[error.code]} {title(error.code)}",
        "content-type: application/problem+json",
        f"content-length: {len(body)}",
        "connection: close",
        *(f"{name}: {text}" for name, text in more),
    ]
    return "\r\n".join([*lines, "", body]).encode("ascii")


def with_pages(program: bytes, pages: Mapping[int, bytes]) -> bytes:
    """Return HAProxy's program with these texts for what it answers while it parses a request.

    Args:
        program: an ELF file.
        pages: by status; every other status gets that of 400, above 499 that of 500.

    Returns: the program; the same where its texts are not found as expected, or leave no room.
    """
    found = list(_PROGRAM_TEXT.finditer(program))
    texts = [page + b"\0" for page in pages.values()]
    if not found or sum(map(len, texts)) > found[-1].end() - found[0].start():
        return program
    changed, places, end = bytearray(program), {}, found[0].start()
    for status, text in zip(pages, texts, strict=True):
        places[status] = end
        changed[end : end + len(text)] = text
        end += len(text)
    for one in found:
        status = int(one[1])
        place = places.get(status, places[500 if status >= 500 else 400])
        pointer = struct.pack("<Q", _address(program, one.start()))
        if program.count(pointer) != 1:
            return program
        at = program.index(pointer)
        changed[at : at + len(pointer)] = struct.pack("<Q", _address(program, place))
    return bytes(changed)


def _address(program: bytes, offset: int) -> int:
    """Return where in memory a byte of an ELF file is."""
    table, size, count = _TABLE.unpack_from(program)
    for number in range(count):
        kind, _, start, address, _, length = _SEGMENT.unpack_from(program, table + number * size)
        if kind == _LOADED and start <= offset < start + length:
            return int(offset - start + address)
    raise ValueError(f"byte {offset} is in no segment")
