"""Streams of events, as data like the requests of `calls.py`, and what their connections bring.

A stream is read over one connection after the other: each begins after the last event of the one
before, so that a reader gets each event once. Reference: features.md (Streams).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from callboard.calls import Attempts, Call, NoReply, Reply, Steps, error_from, segment
from callboard.replies import AuditEntry

# The service sends at least a comment in this interval.
SILENCE_S: Final = 15.0
# Between the end of a connection and the next one.
_PAUSE_S: Final = 0.25
_LAST = "lastEventId"


def stream(client: object, workflow_id: str, *, last_event_id: int | None = None) -> Steps:
    """Give a workflow's audit entries as they are committed, until it ends.

    Args:
        last_event_id: the entry after which they begin; None: its first one.
    """
    return _connections(f"/v1/workflows/{segment(workflow_id)}/stream", {}, last_event_id)


def events(
    client: object,
    *,
    event_type: str | None = None,
    workflow_id: str | None = None,
    last_event_id: int | None = None,
) -> Steps:
    """Give the audit entries that the caller may see as they are committed, without end.

    Args:
        event_type: one type of events, or several parted by commas; None: all.
        workflow_id: that they are about; None: any or none.
        last_event_id: the entry after which they begin; None: the newest one.
    """
    given = {"eventType": event_type, "workflowId": workflow_id}
    query = {name: value for name, value in given.items() if value is not None}
    return _connections("/v1/events/stream", query, last_event_id)


def _connections(path: str, query: Mapping[str, str], last_event_id: int | None) -> Steps:
    last, pause_s = last_event_id, 0.0
    while True:
        headers = {"Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = str(last)
        reply = yield Call(
            "GET", path, query=query, headers=headers, wait_s=SILENCE_S, pause_s=pause_s
        )
        if reply.status == 204:  # it has ended, and there is nothing more
            return {}
        if reply.body[_LAST] is not None:
            last = reply.body[_LAST]
        pause_s = _PAUSE_S


class Connections:
    """The connections of one stream, one after the other, and what they bring.

    Args:
        attempts: of the stream's operation.
    """

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._outcome: Reply | NoReply | None = None
        self._last: int | None = None
        self._rest = b""

    def next_call(self) -> Call | None:
        """Return the call that opens the next connection, None at the end of the stream.

        Raises:
            CallboardError: the service refused, or could not be reached.
        """
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, Reply):
            outcome = replace(outcome, body=self._body(outcome.status))
            if outcome.status == 500:  # the replica has ended during the request
                outcome = NoReply(error_from(outcome).detail, sent=True)
        self._rest = b""
        try:
            return next(self._attempts) if outcome is None else self._attempts.send(outcome)
        except StopIteration:
            return None

    def open(self, status: int, headers: Mapping[str, str]) -> None:
        """Note the head of a reply."""
        self._outcome = Reply(status, {name.lower(): one for name, one in headers.items()}, None)

    def read(self, part: bytes) -> Iterator[AuditEntry]:
        """Yield the entries that are complete with this part of the body."""
        *blocks, self._rest = (self._rest + part).split(b"\n\n")
        for block in blocks:
            members = dict(line.partition(b": ")[::2] for line in block.split(b"\n"))
            if b"id" in members:
                self._last = int(members[b"id"])
            if b"data" in members:
                yield AuditEntry(json.loads(members[b"data"]))

    def fail(self, failure: NoReply) -> None:
        """Note that the connection has failed; one that was open counts as ended."""
        if not (isinstance(self._outcome, Reply) and self._outcome.status == 200):
            self._outcome = failure

    def _body(self, status: int) -> Any:
        if status < 300:
            return {_LAST: self._last}
        try:
            return json.loads(self._rest)
        except ValueError:
            return None
