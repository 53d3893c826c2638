"""Problem details for the errors that HAProxy itself sends: in files, and in a copy of its program.

Theory of operation: HAProxy reads its error replies from files (`errorfile`). But for errors while
it parses a request, HAProxy 2.8 sends texts that are compiled into the program (`mux_h1.c`,
`h1_send_error`). HAProxy 3.5 sends the files for these errors too. So Callboard runs a copy of the
program. In the copy, our texts overwrite the compiled texts, and the pointers to the texts are
changed. If the compiled texts are not found as expected, the copy is not changed. Decision
http-edge.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Final

from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from serve_app.http.errors import STATUS, problem_headers, problem_text, title
from serve_app.supervisor.haproxy_reply_headers import security_headers

# Serve sets HAProxy's buffer to 16 KiB, of which 1 KiB is reserved for headers that HAProxy adds.
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
# Parts of a 64-bit ELF file: the header, which has the position of the segment table, and an entry
# of this table.
_TABLE: Final = struct.Struct("<32xQ14xHH")
_SEGMENT: Final = struct.Struct("<IIQQQQ")
_LOADED: Final = 1


# How long HAProxy waits for a request's headers and its first 16 KiB, seconds.
HEADER_S: Final = 10


def own_refusals() -> dict[int, tuple[ErrorCode, str]]:
    """Return the code and the detail of our reply for each error status of HAProxy."""
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
    """Return the complete HTTP reply for a refusal, given as its code and detail."""
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
    """Return HAProxy's program with these pages in place of its compiled texts.

    Args:
        program: HAProxy's ELF file.
        pages: the replies by status. A status without a page gets the page of 400 if it is below
            500, else the page of 500.

    Returns: the changed program; the unchanged program if the compiled texts are not found as
    expected, or are shorter than the pages.
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
    """Return the memory address at which a byte of an ELF file is loaded."""
    table, size, count = _TABLE.unpack_from(program)
    for number in range(count):
        kind, _, start, address, _, length = _SEGMENT.unpack_from(program, table + number * size)
        if kind == _LOADED and start <= offset < start + length:
            return int(offset - start + address)
    raise ValueError(f"byte {offset} is in no segment")
