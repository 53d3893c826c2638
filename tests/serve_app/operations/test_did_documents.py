"""The documents of `did:web` DIDs: forged ones, and what a flood of them costs.

Reference: decision signed-requests-and-claims.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import orjson
import pytest

from core.errors import ErrorCode, ServiceError
from core.trust.did_key import did_of_key
from core.trust.identity.did_web import document_keys, document_url
from federation.documents import DocumentUnavailable, fetch_document
from ledger.operational import WINDOW_MS
from serve_app.operations.agents.did_documents import (
    ABSENT_MS,
    DOCUMENT_BYTES_MAX,
    FETCHES_PER_OWNER,
    KEPT_MS,
    DidDocuments,
)
from tests.federation.certificates import self_signed
from tests.federation.conftest import trusted
from tests.platform.waiting import until

__all__ = ["trusted"]

DID = "did:web:agents.example.org"
OWNER = "did:test:owner"
KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def text_of(key: bytes) -> str:
    return base64.b64encode(key).decode()


def document(did: str = DID, *methods: object) -> bytes:
    return orjson.dumps({"id": did, "verificationMethod": list(methods)})


def jwk(key: bytes = KEY, **changes: str) -> dict[str, object]:
    x = base64.urlsafe_b64encode(key).decode().rstrip("=")
    return {"publicKeyJwk": {"kty": "OKP", "crv": "Ed25519", "x": x, **changes}}


def multikey(key: bytes = OTHER) -> dict[str, object]:
    return {"type": "Multikey", "publicKeyMultibase": did_of_key(key).removeprefix("did:key:")}


class Web:
    """Hosts of documents, and how often they were asked."""

    def __init__(self, text: bytes | None = None) -> None:
        self.text = text
        self.asked: list[str] = []

    async def fetch(self, url: str) -> bytes:
        """Return the document of any URL."""
        self.asked.append(url)
        if self.text is None:
            raise DocumentUnavailable("got status 302, expected 200")
        return self.text


@pytest.mark.parametrize(
    ("did", "url"),
    [
        (DID, "https://agents.example.org/.well-known/did.json"),
        ("did:web:Example.org%3A8443:a:b", "https://example.org:8443/a/b/did.json"),
        ("did:web:example.org:..:x", None),
        ("did:web:example.org%2Fx", None),
        ("did:web:user%40example.org", None),
        ("did:web:example.org%3A99999", None),
        ("did:web:", None),
    ],
)
def test_a_did_web_names_one_place_by_https(did: str, url: str | None) -> None:
    assert document_url(did) == url


def test_the_keys_of_a_document_are_its_ed25519_ones() -> None:
    rsa = {"publicKeyJwk": {"kty": "RSA", "n": "x"}}
    found = document_keys(
        document(DID, jwk(), multikey(), rsa, jwk(crv="X25519"), jwk(KEY[:5]), 7), DID
    )
    assert found == (text_of(KEY), text_of(OTHER))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"<html>",
        document("did:web:other.example.org", jwk()),
        document(DID, *[jwk()] * 21),
        b'{"id": "did:web:agents.example.org", "verificationMethod": {}}',
    ],
)
async def test_a_forged_document_has_no_keys(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        document_keys(text, DID)
    assert await DidDocuments(Web(text).fetch).keys(DID, OWNER, 0) == ()


async def test_a_document_is_fetched_once_while_it_is_remembered() -> None:
    web = Web(document(DID, jwk()))
    documents = DidDocuments(web.fetch)
    for clock_ms in (0, KEPT_MS - 1):
        assert await documents.keys(DID, OWNER, clock_ms) == (text_of(KEY),)
    assert len(web.asked) == 1
    web.text = None
    for clock_ms in (KEPT_MS, KEPT_MS + ABSENT_MS - 1):
        assert await documents.keys(DID, OWNER, clock_ms) == ()
    assert len(web.asked) == 2


async def test_an_owner_has_so_many_documents_fetched_and_no_more() -> None:
    web = Web()
    documents = DidDocuments(web.fetch)
    for number in range(FETCHES_PER_OWNER):
        await documents.keys(f"{DID}:{number}", OWNER, 0)
    with pytest.raises(ServiceError) as refused:
        await documents.keys(f"{DID}:more", OWNER, 1)
    assert refused.value.code is ErrorCode.RATE_LIMITED
    assert len(web.asked) == FETCHES_PER_OWNER
    await documents.keys(f"{DID}:more", "did:test:other", 1)
    await documents.keys(f"{DID}:again", OWNER, WINDOW_MS)


class SlowWeb(Web):
    """Hosts that answer when they are let."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def fetch(self, url: str) -> bytes:
        """Wait for the gate."""
        self.asked.append(url)
        await self.gate.wait()
        return b""


@pytest.mark.parametrize("path", ["", ":{}", "%3A{}"], ids=["account", "host", "ports of a host"])
async def test_hosts_that_do_not_answer_hold_a_share_of_the_places(path: str) -> None:
    """One owner with many of them, or one host that many owners name; all is given back."""
    is_host = bool(path)
    web = SlowWeb()
    documents = DidDocuments(web.fetch)

    def ask(number: int) -> asyncio.Task[tuple[str, ...]]:
        did = DID + path.format(number + 1) if is_host else f"did:web:h{number}.example.org"
        account = f"{OWNER}{number}" if is_host else OWNER
        return asyncio.ensure_future(documents.keys(did, account, 0))

    asked = [ask(number) for number in range(FETCHES_PER_OWNER)]
    await until(lambda: web.asked)
    refused = [one for one in asked if one.done()]
    codes = {error.code for one in refused if isinstance(error := one.exception(), ServiceError)}
    assert codes == {ErrorCode.OVERLOADED if is_host else ErrorCode.RATE_LIMITED}
    assert len(asked) - len(refused) == len(web.asked) == 3
    other = asyncio.ensure_future(documents.keys("did:web:other.example.org", "did:test:other", 0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(web.asked) == 4
    web.gate.set()
    await asyncio.gather(other, *(one for one in asked if one not in refused))
    again = [ask(FETCHES_PER_OWNER + number) for number in range(3)]
    assert await asyncio.gather(*again) == [()] * 3


# --- over https -----------------------------------------------------------------------------------

LOOPBACK = ("127.0.0.0/8", "::1/128")


class WebServer:
    """An https server on loopback that gives one reply. `asked`: the first lines of requests.

    `did`: the `did:web` whose document it has.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.reply = b""
        self.did = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.decode().partition(" HTTP")[0])
            writer.write(self.reply)
            await writer.drain()
        writer.close()

    def replies(self, status: str, body: bytes = b"", *lines: str) -> None:
        """Give this reply from now on."""
        head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *lines])
        self.reply = f"{head}\r\n\r\n".encode() + body


@asynccontextmanager
async def web_server(context: ssl.SSLContext) -> AsyncIterator[WebServer]:
    """Run a server whose document is that of its DID."""
    web = WebServer()
    async with await asyncio.start_server(web.answer, "127.0.0.1", 0, ssl=context) as server:
        web.did = f"did:web:localhost%3A{server.sockets[0].getsockname()[1]}:agents:a"
        web.replies("200 OK", document(web.did, jwk()))
        yield web


async def fetched(web: WebServer, *egress_allow: str) -> tuple[str, ...]:
    """Return the keys of the server's DID, by a replica with these settings."""
    documents = DidDocuments(lambda url: fetch_document(url, egress_allow, DOCUMENT_BYTES_MAX))
    return await documents.keys(web.did, OWNER, 0)


async def test_a_document_is_read_by_https_where_the_egress_gate_lets_it(
    trusted: ssl.SSLContext,
) -> None:
    async with web_server(trusted) as web:
        assert await fetched(web, *LOOPBACK) == (text_of(KEY),)
        assert web.asked == ["GET /agents/a/did.json"]
        assert await fetched(web) == ()
        assert len(web.asked) == 1, "not a byte goes to an address that is not public"


async def test_a_redirect_a_large_document_and_another_ones_are_none(
    trusted: ssl.SSLContext,
) -> None:
    async with web_server(trusted) as web:
        web.replies("302 Found", document(web.did, jwk()), "Location: /agents/b/did.json")
        assert await fetched(web, *LOOPBACK) == ()
        web.replies("200 OK", document(web.did, jwk()) + b" " * DOCUMENT_BYTES_MAX)
        assert await fetched(web, *LOOPBACK) == ()
        web.replies("200 OK", document(DID, jwk()))
        assert await fetched(web, *LOOPBACK) == ()
        assert web.asked == ["GET /agents/a/did.json"] * 3, "no redirect is followed"


async def test_a_server_of_a_ca_that_is_not_trusted_has_no_document(
    trusted: ssl.SSLContext, tmp_path: Path
) -> None:
    folder = tmp_path / "stranger"
    folder.mkdir()
    stranger = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    stranger.load_cert_chain(self_signed(folder, "localhost"))
    async with web_server(stranger) as web:
        assert await fetched(web, *LOOPBACK) == ()
        assert web.asked == []
