"""The handshake of a connection between machines: both sides prove that they have the key.

1. The client sends its hello: mark, version, a public key of X25519 that is made for this
   connection, and one tag per transport key that it may use. A tag is an HMAC over all of that and
   the name of the actor that the client wants to reach.
2. The server checks the version and finds the first of its own keys that a tag was made with.
3. It sends mark, version, a public key made for this connection, and its proof.
4. The client checks the proof and sends its own.
5. The server checks that. From here on both have the same keys for frames, one per direction.

Proofs and keys are outputs of HKDF over the transport key and the secret that the two public keys
have in common, with everything that was sent, the actor's name and the server's certificate (with
TLS) as its salt. So a recorded side cannot be repeated to a public key that it has not seen, a
transport key that leaks later reads nothing that was recorded, a hello for one actor is refused by
another that has taken over its port, and a machine in between cannot end the TLS of both sides.

Each message has a fixed size, so that a peer without the key makes nobody keep more than that.
Knows no sockets and draws no random keys: exchanges are generators that get what has arrived and
yield what is to be sent. The pattern is NNpsk0 of the Noise protocols. RFC 7748, RFC 5869.
Decision 0205.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from actors.transport.frames import SealedFrames

VERSION: Final = 1
PUBLIC_BYTES: Final = 32
# The current key and the one before; a client with one key sends its tag twice.
KEYS_MAX: Final = 2
_MARK: Final = b"callbrd\n"
_HEADER: Final = _MARK + bytes([VERSION])
_TAG_BYTES: Final = 16
_PROOF_BYTES: Final = 32
_KEY_BYTES: Final = 32
HELLO_BYTES: Final = len(_HEADER) + PUBLIC_BYTES + KEYS_MAX * _TAG_BYTES


class HandshakeRefused(Exception):
    """A peer that does not prove that it has the key, or speaks another version."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Step(NamedTuple):
    """What is sent now, and how many bytes of the other side are waited for."""

    sent: bytes
    wanted_bytes: int


class Agreed(NamedTuple):
    """The end of a handshake: what is sent last, and the frames from here on."""

    sent: bytes
    frames: SealedFrames


Exchange = Generator[Step, bytes, Agreed]


class Side(NamedTuple):
    """What one side brings into a handshake.

    Args:
        keys: transport keys, the current one first; 1 or 2.
        actor: the name of the actor that is called.
        secret: a private key that is made for this connection.
        certificate: the server's certificate, DER; empty without TLS.
    """

    keys: Sequence[bytes]
    actor: str
    secret: X25519PrivateKey
    certificate: bytes = b""


def client_exchange(side: Side) -> Exchange:
    """Run the client's half, steps 1 and 4.

    Raises:
        HandshakeRefused: the server speaks another version or has none of the keys.
    """
    assert 1 <= len(side.keys) <= KEYS_MAX, len(side.keys)
    public = side.secret.public_key().public_bytes_raw()
    tags = [_tag(key, public, side.actor) for key in side.keys]
    hello = _HEADER + public + b"".join((tags * KEYS_MAX)[:KEYS_MAX])
    header = yield Step(hello, len(_HEADER))  # 1
    _check_version(header)
    answer = yield Step(b"", PUBLIC_BYTES + _PROOF_BYTES)
    theirs, proof = answer[:PUBLIC_BYTES], answer[PUBLIC_BYTES:]
    shared = _shared(side.secret, theirs)
    for key in side.keys:
        session = _session(key + shared, hello + header + theirs, side)
        if hmac.compare_digest(session.server_proof, proof):  # 4
            frames = SealedFrames(session.client_frames, session.server_frames)
            return Agreed(session.client_proof, frames)
    raise HandshakeRefused("the server's proof is not of this deployment's key")


def server_exchange(side: Side) -> Exchange:
    """Run the server's half, steps 2, 3 and 5.

    Raises:
        HandshakeRefused: the client speaks another version, has none of the keys, wants to reach
            another actor, or repeats what another has sent.
    """
    assert 1 <= len(side.keys) <= KEYS_MAX, len(side.keys)
    header = yield Step(b"", len(_HEADER))
    if header != _HEADER and header[: len(_MARK)] == _MARK:
        yield Step(_HEADER, 0)  # so that the client can say which version was expected
    _check_version(header)  # 2
    rest = yield Step(b"", HELLO_BYTES - len(_HEADER))
    theirs = rest[:PUBLIC_BYTES]
    tags = [rest[at : at + _TAG_BYTES] for at in range(PUBLIC_BYTES, len(rest), _TAG_BYTES)]
    key = _key_of(side, theirs, tags)
    public = side.secret.public_key().public_bytes_raw()
    session = _session(key + _shared(side.secret, theirs), header + rest + _HEADER + public, side)
    proof = yield Step(_HEADER + public + session.server_proof, _PROOF_BYTES)  # 3
    if not hmac.compare_digest(session.client_proof, proof):  # 5
        raise HandshakeRefused("the client's proof is wrong: it repeats another's hello")
    return Agreed(b"", SealedFrames(session.server_frames, session.client_frames))


class _Session(NamedTuple):
    client_proof: bytes
    server_proof: bytes
    client_frames: bytes
    server_frames: bytes


def _session(secret: bytes, transcript: bytes, side: Side) -> _Session:
    parts = (transcript, side.certificate, side.actor.encode())
    # Digests have one length each, so no part can pass for the beginning of the next.
    salt = b"".join(hashlib.sha256(part).digest() for part in parts)
    info = f"callboard/transport/session/v{VERSION}".encode()
    size = 2 * _PROOF_BYTES + 2 * _KEY_BYTES
    material = HKDF(SHA256(), size, salt=salt, info=info).derive(secret)
    return _Session(*(material[at : at + _KEY_BYTES] for at in range(0, size, _KEY_BYTES)))


def _shared(secret: X25519PrivateKey, theirs: bytes) -> bytes:
    try:
        return secret.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:  # a point of low order, which no honest side sends
        raise HandshakeRefused("the peer's public key is none") from None


def _tag(key: bytes, public: bytes, actor: str) -> bytes:
    return hmac.digest(key, _HEADER + public + actor.encode(), "sha256")[:_TAG_BYTES]


def _key_of(side: Side, public: bytes, tags: Sequence[bytes]) -> bytes:
    for key in side.keys:
        tag = _tag(key, public, side.actor)
        if any(hmac.compare_digest(tag, sent) for sent in tags):
            return key
    raise HandshakeRefused(f"the hello is of another key, or for another actor than {side.actor}")


def _check_version(header: bytes) -> None:
    if header[: len(_MARK)] != _MARK:
        raise HandshakeRefused("the peer speaks another protocol than this transport's")
    if header != _HEADER:
        version = header[len(_MARK)]
        raise HandshakeRefused(
            f"the peer speaks version {version} of the transport, this process version {VERSION}"
        )
