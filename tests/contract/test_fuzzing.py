"""Requests that are drawn from the service's own description: none ends in a 5xx, no reply is other
than described, and nothing that breaks a schema is taken.

Method: schemathesis draws cases that fit each operation's schemas and cases that break them, as an
administrator and as an owner in turn. Each reply is held against the document by our own closed
reading (`described.py`), and by the checks of schemathesis named here. Left out is
`positive_data_acceptance`: a schema does not say that a parent exists or that a graph has no cycle,
which is refused with 400. `make soak` draws twenty times as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    status_code_conformance,
)

from serve_app.api import all_operations
from serve_app.openapi.document import openapi_document
from tests.contract.conftest import Caller, MakeCaller
from tests.contract.described import described
from tests.platform.deployments import RunningDeployment

load_all_checks()
# What wrong data may be refused with; a body that breaks its schema may be too large as well.
# Less than HAProxy's buffer, in which the other headers must have room.
HEAD_CHARS_MAX = 14_000
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 429]
CONFIG = {"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}
SCHEMA = schemathesis.openapi.from_dict(
    openapi_document(all_operations(), "0"), config=schemathesis.Config.from_dict(CONFIG)
)
# The reply has no end; test_event_streams.py sends it odd values.
ENDLESS = "GET /v1/events/stream"
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}
del OPERATIONS[ENDLESS]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    missing_required_header,
    negative_data_rejection,
]
# What is wrong with one item of these concerns that one alone: the reply is 200 and says so there.
BULKS = {label for label in OPERATIONS if label.endswith("/bulk")}
# To draw a case of these takes a tenth of a second: manifests and cards are deep.
DEEP = BULKS | {
    "POST /v1/workflows",
    "POST /v1/workflows/publish",
    "POST /v1/agents/register",
    "POST /v1/agent/register",
    "POST /v1/workflows/nodeResult",
}
# Of the usual run and of the soak, over all operations; of a deep one in the usual run.
CASES, CASES_OF_SOAK, CASES_OF_DEEP = 640, 20_000, 4
TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """Connections that stay open from case to case."""
    with requests.Session() as opened:
        yield opened


@pytest.fixture(scope="module")
def owner(make_caller: MakeCaller) -> Caller:
    """An owner with credits and the rights of a usual key."""
    return make_caller(1_000)


def fuzz(
    label: str, url: str, callers: tuple[Caller, ...], session: requests.Session, cases: int
) -> None:
    """Send cases of an operation, drawn to fit and to break its schemas, by each caller in turn."""
    operation = OPERATIONS[label]
    checks = [
        check for check in CHECKS if label not in BULKS or check is not negative_data_rejection
    ]
    turns = cycle(callers)
    drawn = st.one_of(
        operation.as_strategy(GenerationMode.POSITIVE),
        operation.as_strategy(GenerationMode.NEGATIVE),
    )

    @settings(
        max_examples=cases,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=drawn)
    def send(case: Case) -> None:
        caller = next(turns)
        response = case.call(
            base_url=url, session=session, headers={"x-api-key": caller.key}, timeout=TIMEOUT_S
        )
        if len(response.request.path_url) > HEAD_CHARS_MAX and response.status_code == 400:
            return  # never a whole head to HAProxy, which has a built-in page for it (0265)
        case.validate_response(response, checks=checks)
        path = response.request.path_url.partition("?")[0]
        method = response.request.method or ""
        headers: Any = {name: values[0] for name, values in response.headers.items()}
        text = response.content.decode()
        defect = described().defect(method, path, response.status_code, headers, text)
        assert not defect, f"{method} {path}: {defect}"

    send()


@pytest.mark.parametrize("label", OPERATIONS)
def test_no_request_ends_in_a_5xx_or_a_reply_that_is_not_described(
    label: str,
    deployment: RunningDeployment,
    admin: Caller,
    owner: Caller,
    session: requests.Session,
) -> None:
    others = CASES - CASES_OF_DEEP * len(DEEP)
    cases = CASES_OF_DEEP if label in DEEP else -(-others // (len(OPERATIONS) - len(DEEP)))
    fuzz(label, deployment.url, (admin, owner), session, cases)


@pytest.mark.soak
@pytest.mark.parametrize("label", OPERATIONS)
def test_no_request_of_many_ends_in_a_5xx_or_a_reply_that_is_not_described(
    label: str,
    deployment: RunningDeployment,
    admin: Caller,
    owner: Caller,
    session: requests.Session,
) -> None:
    cases = -(-CASES_OF_SOAK // len(OPERATIONS))
    fuzz(label, deployment.url, (admin, owner), session, cases)
