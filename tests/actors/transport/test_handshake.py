"""The handshake without sockets: who agrees, and who is refused at which step."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from actors.transport.frames import SealedFrames
from actors.transport.handshake import (
    HELLO_BYTES,
    PUBLIC_BYTES,
    VERSION,
    Agreed,
    Exchange,
    HandshakeRefused,
    Side,
    client_exchange,
    server_exchange,
)

NEW, OLD, OTHER = bytes(31) + b"n", bytes(31) + b"o", bytes(31) + b"x"
ACTOR = "workflow@1#0"


class End:
    """One side of a handshake, which gets bytes as a connection brings them."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._arrived = b""
        self.sent = b""
        self.wanted_bytes_max = 0
        self.agreed: Agreed | None = None
        self.refusal: HandshakeRefused | None = None
        self._go_on(None)

    def receive(self, arrived: bytes) -> None:
        """Take bytes; what comes after the end of the handshake is left alone."""
        self._arrived += arrived
        while self.agreed is None and self.refusal is None and self._has_message():
            message, self._arrived = self._arrived[: self._wanted], self._arrived[self._wanted :]
            self._go_on(message)

    def _has_message(self) -> bool:
        return len(self._arrived) >= self._wanted

    def _go_on(self, message: bytes | None) -> None:
        try:
            step = self._exchange.send(message)  # type: ignore[arg-type]
            self.sent += step.sent
            self._wanted = step.wanted_bytes
            self.wanted_bytes_max = max(self.wanted_bytes_max, self._wanted)
        except StopIteration as end:
            self.agreed = end.value
            self.sent += end.value.sent
        except HandshakeRefused as error:
            self.refusal = error


class Met(NamedTuple):
    """Two sides that have told each other everything."""

    client: End
    server: End

    @property
    def have_agreed(self) -> bool:
        return self.client.agreed is not None and self.server.agreed is not None


def private(number: int) -> X25519PrivateKey:
    """Return a private key that a number stands for."""
    return X25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def client(*keys: bytes, actor: str = ACTOR, secret: int = 1, certificate: bytes = b"") -> End:
    """Return a client's end."""
    return End(client_exchange(Side(keys, actor, private(secret), certificate)))


def server(*keys: bytes, actor: str = ACTOR, secret: int = 2, certificate: bytes = b"") -> End:
    """Return a server's end."""
    return End(server_exchange(Side(keys, actor, private(secret), certificate)))


def meet(left: End, right: End) -> Met:
    """Carry everything between two ends until neither sends more."""
    told = [0, 0]
    while told != [len(left.sent), len(right.sent)]:
        there, back = left.sent[told[0] :], right.sent[told[1] :]
        told = [len(left.sent), len(right.sent)]
        right.receive(there)
        left.receive(back)
    return Met(left, right)


def carries(sender: SealedFrames, receiver: SealedFrames) -> bool:
    """Return whether the next frame of one is accepted by the other."""
    pieces = sender.written(b"body")
    with suppress(Exception):
        return receiver.opened(memoryview(pieces[1])) == b"body"
    return False


@pytest.mark.parametrize(
    ("clients", "servers"),
    [
        ((NEW,), (NEW,)),
        ((NEW, OLD), (OLD,)),
        ((OLD,), (NEW, OLD)),
        ((NEW, OLD), (NEW, OLD)),
    ],
    ids=["one key", "an old server", "an old client", "both change"],
)
def test_sides_that_share_a_key_agree(
    clients: tuple[bytes, ...], servers: tuple[bytes, ...]
) -> None:
    met = meet(client(*clients), server(*servers))
    assert met.client.agreed is not None and met.server.agreed is not None
    here, there = met.client.agreed.frames, met.server.agreed.frames
    assert carries(here, there) and carries(there, here)
    assert not carries(here, here), "each direction has a key of its own"


@pytest.mark.parametrize(
    ("keys", "actor"), [((OTHER,), ACTOR), ((NEW,), "workflow@2#0"), ((OTHER, OLD), ACTOR)]
)
def test_a_hello_of_another_key_or_for_another_actor_gets_no_answer(
    keys: tuple[bytes, ...], actor: str
) -> None:
    """Another actor may listen at the port of one that has ended."""
    met = meet(client(*keys, actor=actor), server(NEW))
    assert met.server.sent == b""
    assert str(met.server.refusal).startswith("the hello is of another key")


def test_what_a_server_has_sent_before_is_refused() -> None:
    recorded = meet(client(NEW), server(NEW)).server.sent
    deceived = client(NEW, secret=9)
    deceived.receive(recorded)
    assert (deceived.agreed, str(deceived.refusal)) == (
        None,
        "the server's proof is not of this deployment's key",
    )


def test_what_a_client_has_sent_before_is_refused() -> None:
    recorded = meet(client(NEW), server(NEW)).client.sent
    again = server(NEW, secret=3)
    again.receive(recorded)
    assert again.agreed is None
    assert "repeats another's hello" in str(again.refusal)
    assert server(NEW, secret=2).sent == b"", "a server speaks when it has heard a tag"


def test_the_transport_key_alone_does_not_open_what_was_recorded() -> None:
    """Who gets it later knows all that was sent, but neither private key."""

    class Recorded:
        """Shows a public key without having its private one."""

        def public_key(self) -> X25519PublicKey:
            """Return what was recorded."""
            return private(2).public_key()

        def exchange(self, theirs: X25519PublicKey) -> bytes:
            """Return a secret of another private key."""
            return private(3).exchange(theirs)

    thief = End(server_exchange(Side((NEW,), ACTOR, cast(X25519PrivateKey, Recorded()))))
    met = meet(client(NEW), thief)
    assert thief.sent[9 : 9 + PUBLIC_BYTES] == private(2).public_key().public_bytes_raw()
    assert met.client.agreed is None
    assert "proof" in str(met.client.refusal)


def test_a_public_key_of_low_order_is_refused() -> None:
    """The secret in common would be the same for everybody."""
    ours = client(NEW)
    ours.receive(server(NEW).sent + ours.sent[:9] + bytes(PUBLIC_BYTES) + bytes(32))
    assert str(ours.refusal) == "the peer's public key is none"


@pytest.mark.parametrize("size", [len(b"callbrd\n") + 1, HELLO_BYTES, 10_000])
def test_a_hello_that_comes_back_is_no_answer(size: int) -> None:
    mirrored = client(NEW)
    mirrored.receive((mirrored.sent * 200)[:size])
    assert mirrored.agreed is None
    assert size == len(b"callbrd\n") + 1 or mirrored.refusal is not None


def test_a_peer_that_ends_the_tls_of_both_sides_is_found() -> None:
    """It has a certificate of the same CA, but not the one that the server knows as its own."""
    met = meet(client(NEW, certificate=b"between"), server(NEW, certificate=b"server"))
    assert met.client.refusal is not None and not met.have_agreed


def test_every_byte_of_a_handshake_counts() -> None:
    whole = meet(client(NEW), server(NEW))
    count = 0
    for from_client in (True, False):
        sent = whole.client.sent if from_client else whole.server.sent
        for position in range(len(sent)):
            left, right = client(NEW), server(NEW)
            flipped = bytearray(sent)
            flipped[position] ^= 1 << position % 8
            (right if from_client else left).receive(bytes(flipped))
            (left if from_client else right).receive(
                right.sent if from_client else whole.client.sent
            )
            # The second tag of a client with one key repeats the first: neither is needed alone.
            is_a_tag = from_client and HELLO_BYTES - 32 <= position < HELLO_BYTES
            assert not Met(left, right).have_agreed or is_a_tag, (from_client, position)
            count += 1
    assert count == len(whole.client.sent) + len(whole.server.sent) > 150


def test_another_version_is_named_on_both_sides() -> None:
    theirs = bytearray(client(NEW).sent)
    theirs[8] = VERSION + 1
    ours = server(NEW)
    ours.receive(bytes(theirs))
    expected = f"the peer speaks version {VERSION + 1} of the transport, this process version"
    assert str(ours.refusal) == f"{expected} {VERSION}"
    assert len(ours.sent) == 9, "which version was expected, and nothing else"
    newer = client(NEW)
    newer.receive(ours.sent[:8] + bytes([VERSION + 1]))
    assert str(newer.refusal) == f"{expected} {VERSION}"


def test_another_protocol_gets_no_word() -> None:
    ours = server(NEW)
    ours.receive(b"GET / HTTP/1.1\r\n\r\n")
    assert (ours.sent, str(ours.refusal)) == (
        b"",
        "the peer speaks another protocol than this transport's",
    )


def test_no_message_of_a_handshake_is_larger_than_a_few_hundred_bytes() -> None:
    met = meet(client(NEW, OLD), server(NEW))
    assert max(met.client.wanted_bytes_max, met.server.wanted_bytes_max) < 200
