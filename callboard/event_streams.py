"""Event streams: the operations that open them, and the parser of the received bytes.

A stream is read over successive connections. Each connection begins after the last event of the
previous connection, so the reader gets each event once. Like `calls.py`, this file does no I/O.
Reference: features.md (Streams).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from callboard.calls import Attempts, Call, NoReply, Reply, Steps, error_from, segment
from callboard.replies import AuditEntry

# The longest silence on a stream. If there are no events, the service sends a comment.
SILENCE_S: Final = 15.0
# The pause between the end of a connection and the start of the next connection.
_PAUSE_S: Final = 0.25
_LAST = "lastEventId"


def stream(client: object, workflow_id: str, *, last_event_id: int | None = None) -> Steps:
    """Iterate over a workflow's audit entries as they are committed, until the workflow ends.

    Args:
        last_event_id: the id of the entry after which the stream begins; None: the stream begins
            with the workflow's first entry.
    """
    return _connections(f"/v1/workflows/{segment(workflow_id)}/stream", {}, last_event_id)


def events(
    client: object,
    *,
    event_type: str | None = None,
    workflow_id: str | None = None,
    last_event_id: int | None = None,
) -> Steps:
    """Iterate without end over the audit entries that the caller may see, as they are committed.

    Args:
        event_type: an event type, or several separated by commas; None: all types.
        workflow_id: only entries about this workflow; None: all entries.
        last_event_id: the id of the entry after which the stream begins; None: the newest entry.
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
        if reply.status == 204:  # the stream has ended
            return {}
        if reply.body[_LAST] is not None:
            last = reply.body[_LAST]
        pause_s = _PAUSE_S


class Connections:
    """The successive connections of one stream, and the parser of the received bytes.

    Args:
        attempts: the attempts of the stream's operation.
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
            if outcome.status == 500:  # the replica ended during the request: reconnect
                outcome = NoReply(error_from(outcome).detail, sent=True)
        self._rest = b""
        try:
            return next(self._attempts) if outcome is None else self._attempts.send(outcome)
        except StopIteration:
            return None

    def open(self, status: int, headers: Mapping[str, str]) -> None:
        """Store the status and the headers of a reply whose body follows."""
        self._outcome = Reply(status, {name.lower(): one for name, one in headers.items()}, None)

    def read(self, part: bytes) -> Iterator[AuditEntry]:
        """Yield the entries that this part of the body completes."""
        *blocks, self._rest = (self._rest + part).split(b"\n\n")
        for block in blocks:
            members = dict(line.partition(b": ")[::2] for line in block.split(b"\n"))
            if b"id" in members:
                self._last = int(members[b"id"])
            if b"data" in members:
                yield AuditEntry(json.loads(members[b"data"]))

    def fail(self, failure: NoReply) -> None:
        """Store the failure of the connection, unless the stream was open.

        An open stream that fails counts as ended, so that the next connection continues it.
        """
        if not (isinstance(self._outcome, Reply) and self._outcome.status == 200):
            self._outcome = failure

    def _body(self, status: int) -> Any:
        if status < 300:
            return {_LAST: self._last}
        try:
            return json.loads(self._rest)
        except ValueError:
            return None
