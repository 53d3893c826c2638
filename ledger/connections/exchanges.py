"""One exchange with the server, past the driver's cursors.

A cursor takes twice as long as the exchange itself: for reads that a request waits for, and looks
that an owner makes twelve times a second, that is most of their processor time. What is sent is the
caller's, by the functions of `pgconn`; all answers but the last are dropped. Decision 0299.
"""

from __future__ import annotations

import asyncio
from typing import Final

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

# How often it is looked for what the loop has not told of: under uvloop a connection whose backend
# was ended is now and then never told of again, nor that it was cut, and its reads waited for ever.
ASK_S: Final = 0.25
_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


async def receive(pgconn: PGconn, socket: int) -> PGresult:
    """Return the answer to what was just sent on a connection.

    A task that is cancelled here leaves a connection that can only be closed.

    Args:
        socket: of the connection, which does not tell it any more once it has broken.

    Raises:
        psycopg.Error: the statement failed, or the connection was lost.
    """
    loop = asyncio.get_running_loop()
    while pgconn.flush():
        await _writable(socket)
    answered: asyncio.Future[None] = loop.create_future()
    last: PGresult | None = None
    is_reading = True
    timer: asyncio.TimerHandle

    def ask() -> None:
        nonlocal timer
        timer = loop.call_later(ASK_S, ask)
        read()

    def stop() -> None:
        # Once: of a connection that was lost the socket's number is soon another one's.
        nonlocal is_reading
        if is_reading:
            is_reading = False
            timer.cancel()
            loop.remove_reader(socket)

    def read() -> None:
        nonlocal last
        try:
            pgconn.consume_input()
            # Asked before each result: libpq would wait for one that has not come, and all with it.
            while not pgconn.is_busy():
                one = pgconn.get_result()
                if one is None:
                    stop()
                    if not answered.done():
                        answered.set_result(None)
                    return
                last = one
        except psycopg.Error as error:
            stop()
            if not answered.done():
                answered.set_exception(error)

    timer = loop.call_later(ASK_S, ask)
    loop.add_reader(socket, read)
    try:
        await answered
    finally:
        stop()
    # libpq makes a result of its own of a connection that has broken.
    if last is None or pgconn.status != ConnStatus.OK:
        raise psycopg.OperationalError("the connection was lost")
    if last.status not in _DONE:
        raise psycopg.errors.error_from_result(last)
    return last


async def _writable(socket: int) -> None:
    """Return when a socket takes more, or it is time to try."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    timer = loop.call_later(ASK_S, note)
    loop.add_writer(socket, note)
    try:
        await ready
    finally:
        timer.cancel()
        loop.remove_writer(socket)
