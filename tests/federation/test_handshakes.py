"""What a server makes of its handshake holds up no other connection."""

from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path

import pytest

from federation.handshakes import STEPS_AT_ONCE, THREADS, Handshakes
from federation.http_client import tls_context
from federation.http_connection import (
    HANDSHAKE_BYTES_MAX,
    SESSION_STEP_BYTES,
    HttpFailure,
    HttpFailureKind,
    HttpReply,
    Outcome,
)
from federation.tls_session import TlsSession
from tests.federation.test_http_client import (
    PATIENCE_S,
    REPLY,
    client,
    post,
    replying,
    site,
    url_of,
)

BOTH_LOOPS = [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})]
pytestmark = pytest.mark.parametrize("anyio_backend", BOTH_LOOPS)


async def test_the_loop_serves_others_while_a_handshake_is_at_work(
    trusted: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of the server's choice took the loop for a second, 100 certificates for 24 ms."""
    begun, other_is_answered = threading.Event(), threading.Event()
    shake_hands = TlsSession.shake_hands

    def step(session: TlsSession) -> bool:
        if session.has_unread:  # what the server has said decides how long it takes
            begun.set()
            assert other_is_answered.wait(PATIENCE_S / 2)
        return shake_hands(session)

    monkeypatch.setattr(TlsSession, "shake_hands", step)
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    async with (
        site(replying(REPLY), ssl=trusted) as slow,
        site(replying(REPLY)) as other,
        client() as mine,
    ):
        mine.send(post(url_of(slow, is_tls=True)), outcome.set_result)
        async with asyncio.timeout(PATIENCE_S):
            while not begun.is_set():
                await asyncio.sleep(0.001)
            assert isinstance(await mine.request(post(other.url)), HttpReply)
            other_is_answered.set()
            assert isinstance(await outcome, HttpReply)


async def test_the_client_offers_no_group_that_the_server_makes_up() -> None:
    """Nor what is weak, whatever this Python was built to offer by default."""
    assert tls_context().minimum_version is ssl.TLSVersion.TLSv1_2
    kinds = {cipher["kea"] for cipher in tls_context().get_ciphers()}
    assert kinds == {"kx-ecdhe", "kx-any"}  # any: of TLS 1.3, where groups have names


@pytest.mark.parametrize(
    ("size", "is_taken"), [(8 * SESSION_STEP_BYTES, True), (HANDSHAKE_BYTES_MAX * 5 // 4, False)]
)
async def test_a_handshake_comes_in_steps_to_a_bound(
    trusted: ssl.SSLContext, tmp_path: Path, size: int, *, is_taken: bool
) -> None:
    pem = (tmp_path / "server.pem").read_text()
    certificate = pem[pem.index("-----BEGIN CERTIFICATE") :]
    count = size // len(ssl.PEM_cert_to_DER_cert(certificate))
    chain = tmp_path / "chain.pem"
    chain.write_text(pem + count * certificate)
    trusted.load_cert_chain(chain)
    async with site(replying(REPLY, REPLY), ssl=trusted) as here, client() as mine:
        for _ in range(2):
            outcome = await mine.request(post(url_of(here, is_tls=True)))
            assert isinstance(outcome, HttpReply) is is_taken
            if isinstance(outcome, HttpFailure):
                assert outcome.kind is HttpFailureKind.UNREACHABLE
                assert not mine._connections
        assert here.connections == is_taken  # without a handshake none is counted


class Session(TlsSession):
    """A session whose steps end when they are told to."""

    def __init__(self, begun: list[str], payer: str) -> None:
        self._begun = begun
        self.payer = payer
        self.go_on = threading.Event()

    def shake_hands(self) -> bool:
        """Note whose step it is, and wait."""
        self._begun.append(self.payer)
        return self.go_on.wait(PATIENCE_S)


async def test_payers_in_turn_take_the_steps_and_a_cancelled_one_takes_none() -> None:
    begun: list[str] = []
    handshakes = Handshakes()
    busy = [Session(begun, "busy") for _ in range(STEPS_AT_ONCE + 4)]
    other = Session(begun, "other")
    steps = {
        session: asyncio.create_task(handshakes.step(session.payer, session))
        for session in (*busy, other)
    }

    async with asyncio.timeout(PATIENCE_S):
        while len(begun) < THREADS:
            await asyncio.sleep(0.001)
    steps[busy[STEPS_AT_ONCE]].cancel()  # it waits
    steps[busy[0]].cancel()  # it runs, and its thread is not free
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert len(begun) == THREADS
    assert len(handshakes._waiting) == len(busy) - STEPS_AT_ONCE
    for session in steps:
        session.go_on.set()
    await asyncio.wait(steps.values(), timeout=PATIENCE_S)
    assert len(begun) == len(busy)
    # The first or the second after those that were begun; its thread may be the slower one.
    assert begun.index("other") < STEPS_AT_ONCE + 1 + THREADS
    async with asyncio.timeout(PATIENCE_S):  # the cancelled one's thread may be the last to end
        while handshakes._taken:
            await asyncio.sleep(0.001)
    await handshakes.close()


async def test_a_step_that_is_cancelled_in_its_turn_gives_it_to_the_next() -> None:
    begun: list[str] = []
    handshakes = Handshakes()
    sessions = [Session(begun, f"{number}") for number in range(STEPS_AT_ONCE + 2)]
    tasks = [asyncio.create_task(handshakes.step(one.payer, one)) for one in sessions]
    await asyncio.sleep(0)
    handshakes._taken += 1
    handshakes._pass_on()
    tasks[-2].cancel()
    await asyncio.sleep(0)
    assert not handshakes._waiting
    for session in sessions:
        session.go_on.set()
    await asyncio.wait(tasks, timeout=PATIENCE_S)
    assert tasks[-2].cancelled()
    assert sessions[-2].payer not in begun
    assert sessions[-1].payer in begun
    async with asyncio.timeout(PATIENCE_S):  # the cancelled one's thread may be the last to end
        while handshakes._taken:
            await asyncio.sleep(0.001)
    await handshakes.close()
