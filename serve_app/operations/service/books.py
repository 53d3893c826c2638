"""The check of the books, which the timekeeper runs: its newest result, and a request for another.

Reference: money.md (Checking the books).
"""

from __future__ import annotations

from actors.cluster.reporting.books_watch import BooksResult
from core.records.api.operators import BooksChecked, BooksRequested, WrongRow
from core.timestamps import iso_ms
from core.trust.access import ADMIN
from serve_app.http.calls import Call, Json, Operations, Repeats
from serve_app.operations.views import shown

OPERATIONS = Operations("ledger")


@OPERATIONS.add("GET", "/v1/ledger/check", scope=ADMIN, reply=BooksChecked)
async def read_check(call: Call) -> Json:
    """Read the newest result of the check of the books."""
    found: BooksResult = await call.services.gateway.ask_timekeeper("books")
    wrong = None if found.problem is None else shown(WrongRow, found.problem._asdict())
    return shown(BooksChecked, found._asdict(), problem=wrong)


@OPERATIONS.add(
    "POST", "/v1/ledger/check", scope=ADMIN, reply=BooksRequested, repeats=Repeats.IGNORED
)
async def request_check(call: Call) -> Json:
    """Request a check of the books; it starts when the running one has ended."""
    requested_ms = await call.services.gateway.ask_timekeeper("check_books")
    return {"success": True, "requestedAt": iso_ms(requested_ms)}
