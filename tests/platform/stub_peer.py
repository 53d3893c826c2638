"""A peer of a deployment: a key, and a real HTTP server that signs documents as deployments do."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from core.peers.documents import deployment_did, heartbeat_of, signed
from core.trust.signing_keys import SigningKey, signing_key_rotation_message
from tests.platform.loopback import Quiet, loopback

Json = dict[str, Any]
STATE: Json = {"agentCount": 3, "workflowCount": 7, "load": 0.25}


def offer(capability_id: str, price_credits: float = 0.5) -> Json:
    """Return what a heartbeat says of a capability."""
    return {"id": capability_id, "priceCredits": price_credits, "latencyMs": 40, "version": "1.0.0"}


@dataclass
class StubPeer:
    """The other side. `region`, `offers` and `events` are what it says of itself.

    `heard`: the heartbeats that came to it; `orders`: the manifests that were published there, each
    of which it answers with what `answer` makes of it. `asked`: the `after` of the requests for
    trust events, with their headers. `gate`: while it is set, requests are answered. `workflows`,
    `next_cursor`: each page of its list of workflows.
    """

    seed: bytes
    region: str = "eu"
    url: str = ""
    offers: list[Json] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    to: int = 0
    heard: list[Json] = field(default_factory=list)
    orders: list[Json] = field(default_factory=list)
    answer: Callable[[Json], Json] = lambda order: {}
    asked: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    rotations: list[Json] = field(default_factory=list)
    workflows: list[Json] = field(default_factory=list)
    next_cursor: str | None = None

    def __post_init__(self) -> None:
        self.key = SigningKey(self.seed)
        self.did = deployment_did(self.key.public_key)
        self.peer_id = self.did.removeprefix("did:callboard:")
        self.gate.set()

    @property
    def addition(self) -> Json:
        """The request that adds it as a peer."""
        return {"endpoint": self.url, "region": self.region, "publicKey": self.key.public_key}

    def rotate(self, seed: bytes) -> None:
        """Sign with another key from now on."""
        key = SigningKey(seed)
        proof = self.key.sign(signing_key_rotation_message(key.public_key))
        self.rotations.append({"publicKey": key.public_key, "proof": proof})
        self.key = key

    def heartbeat(self, *, at_ms: int | None = None, **members: Any) -> Json:
        """Return a signed heartbeat of now, with other members where they are given."""
        document = heartbeat_of(
            {**STATE, "region": self.region, "capabilities": self.offers},
            did=self.did,
            key=self.key,
            rotations=self.rotations,
            now_ms=at_ms or time.time_ns() // 1_000_000,
        )
        del document["signature"]
        return signed({**document, **members}, self.key)

    def page(self, after: int) -> Json:
        """Return a signed page of trust events."""
        events = [one for one in self.events if one["id"] > after]
        to = max(self.to, after)
        return signed({"did": self.did, "after": after, "to": to, "events": events}, self.key)


@contextlib.contextmanager
def stub_peer(seed: bytes, region: str = "eu") -> Iterator[StubPeer]:
    """Serve as a peer until the block is left."""
    made = StubPeer(seed, region)

    class Handler(Quiet):
        def do_POST(self) -> None:
            document = json.loads(self.request_body())
            if "/workflows/" in self.path:
                if self.path.endswith("/publish"):
                    made.orders.append(document)
                self._answer(made.answer(document))
                return
            made.heard.append(document)
            self._answer({"success": True, "id": "you", "heartbeat": made.heartbeat()})

        def do_GET(self) -> None:
            if self.path.startswith("/v1/workflows?"):
                self._answer({"workflows": made.workflows, "nextCursor": made.next_cursor})
                return
            if "/workflows" in self.path:
                self._answer({"workflows": []})
                return
            after = int(parse_qs(urlsplit(self.path).query)["after"][0])
            made.asked.append((after, self.request_headers()))
            self._answer(made.page(after))

        def _answer(self, document: Json) -> None:
            made.gate.wait(60)
            body = json.dumps(document).encode()
            with contextlib.suppress(OSError):  # the sender does not wait for ever
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

    with loopback(Handler) as made.url:
        try:
            yield made
        finally:
            made.gate.set()
