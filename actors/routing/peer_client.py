"""Requests of this deployment to its peers, except orders: heartbeats, trust events, books.

Reference: features.md (Peers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.errors import ErrorCode, ServiceError
from core.json_text import NotJson, read_foreign_json, write_json
from core.settings import Settings
from federation.http_client import HttpClient, HttpRequest
from federation.http_connection import HttpFailure
from federation.name_resolver import NameResolver
from ledger.features.own_state import RequestSigner
from ledger.reads.reader import LedgerReader, RowDict

REQUEST_S: Final = 5.0
REPLY_BYTES_MAX: Final = 1024 * 1024
_BOUNDS: Final = (REQUEST_S, REQUEST_S, REPLY_BYTES_MAX)


class PeerClient:
    """Sends requests to peers and reads the JSON objects of their replies.

    Args:
        settings: the deployment's settings.
        reader: reads the signing key.
    """

    def __init__(self, settings: Settings, reader: LedgerReader) -> None:
        self._client = HttpClient(settings.egress_allow, NameResolver())
        self._signer = RequestSigner(reader, settings.deployment_keys)

    async def get(self, row: RowDict, path: str) -> Mapping[str, Any]:
        """Return the JSON object that a peer replies to a GET signed with the deployment's key.

        Args:
            row: the row of the peer.
            path: the path, with its query.

        Raises:
            ServiceError: AGENT_UNAVAILABLE when there is no usable reply; LEDGER_UNAVAILABLE when
                the signing key cannot be read.
        """
        url = row["endpoint"] + path
        signature = await self._signer.headers("GET", url, b"")
        headers = {"Accept-Encoding": "identity", **signature}
        return await self._send(row, HttpRequest("GET", url, headers, None, *_BOUNDS))

    async def post(self, row: RowDict, path: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the JSON object that a peer replies to a POST.

        Args:
            row: the row of the peer.
            path: the path.
            document: the body. It contains its own signature, so the request is not signed.

        Raises:
            ServiceError: AGENT_UNAVAILABLE when there is no usable reply.
        """
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        body = write_json(document)
        request = HttpRequest("POST", row["endpoint"] + path, headers, body, *_BOUNDS)
        return await self._send(row, request)

    async def _send(self, row: RowDict, request: HttpRequest) -> Mapping[str, Any]:
        outcome = await self._client.request(request)
        if isinstance(outcome, HttpFailure):
            raise unusable(row, f"{outcome.kind.name}: {outcome.detail}")
        if outcome.status == 401:
            self._signer.forget()
        try:
            reply = read_foreign_json(outcome.body)
        except NotJson:
            reply = None
        if outcome.status != 200 or not isinstance(reply, dict):
            raise unusable(row, f"{outcome.status} {outcome.body[:200]!r}")
        return reply


def unusable(row: RowDict, got: str) -> ServiceError:
    """Return the error for a reply of a peer that cannot be used."""
    detail = f"the peer {row['id']} gave no usable reply: got {got}, expected 200 and a JSON object"
    return ServiceError(ErrorCode.AGENT_UNAVAILABLE, detail[:500])
