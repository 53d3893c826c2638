"""Runs the steps of TLS handshakes that follow what a server has said, in threads, payers in turn.

What a server chooses decides how long a step takes: 100 kB of certificates of which none is trusted
are 40 ms, a large group 130 ms. OpenSSL lets go of the interpreter for it. A payer's servers hold
up another payer's handshake for the steps that are begun. Knows no sockets. Decision 0193.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from core.market.sharing.fair_queue import FairQueue
from federation.tls_session import TlsSession

# A good step takes a millisecond, so two are enough.
THREADS: Final = 2
# A thread that has the interpreter goes on with the next: from a busy loop it gets it in 5 ms.
STEPS_AT_ONCE: Final = 4 * THREADS

_Turn = asyncio.Future[None]


class Handshakes:
    """The handshakes of one client; made inside its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="handshake")
        self._running: set[asyncio.Future[bool]] = set()
        # Steps that are begun: one that waits is given the place of one that ends.
        self._taken = 0
        self._waiting: FairQueue[_Turn, _Turn] = FairQueue()

    def __repr__(self) -> str:
        return f"<Handshakes running={len(self._running)} waiting={len(self._waiting)}>"

    async def step(self, payer: str, session: TlsSession) -> bool:
        """Go on with a session's handshake; return whether it is complete.

        A cancelled one that has begun goes on in its thread: its session is not to be used.

        Raises:
            ssl.SSLError: it has failed.
        """
        if self._taken < STEPS_AT_ONCE:
            self._taken += 1
        else:
            turn = self._loop.create_future()
            self._waiting.put(payer, turn, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if self._waiting.drop(turn) is None and not turn.cancelled():
                    self._pass_on()
                raise
        running = self._loop.run_in_executor(self._threads, session.shake_hands)
        self._running.add(running)
        running.add_done_callback(self._end)
        return await asyncio.shield(running)

    async def close(self) -> None:
        """End when the steps that run have ended; those that wait are to be cancelled before."""
        await asyncio.gather(*self._running, return_exceptions=True)
        self._threads.shutdown()

    def _end(self, running: asyncio.Future[bool]) -> None:
        self._running.discard(running)
        self._pass_on()

    def _pass_on(self) -> None:
        while (turn := self._waiting.take()) is not None:
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._taken -= 1
