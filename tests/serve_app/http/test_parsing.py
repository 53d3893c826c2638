"""Path, query and body of a request are judged together, as the operation declares them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from core.errors import ErrorCode, ServiceError
from core.records.api.record import PageQuery
from core.records.api.workflows import Cancellation
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Operation, Reply
from serve_app.http.paths import path_texts
from tests.serve_app.parts import call_of

WORKFLOW = "0199c0de-0000-7000-8000-00000000000A"
CANCEL = "/v1/workflows/{workflow_id}/cancel"
AUCTION = "/v1/auctions/{workflow_id}/{node}"
PRICE = "/v1/capabilities/{capability_id}/price"
AGENT = "/v1/agents/{did}"


async def unused(call: Call) -> Reply:
    """Answer nothing: only the declaration is used."""
    raise AssertionError(call)


def operation(path: str, **changes: Any) -> Operation:
    fields: dict[str, Any] = {
        "method": "POST",
        "path": path,
        "handler": unused,
        "summary": "",
        "scope": None,
        "rate": RateClass.WRITE,
        "tag": "",
        "reply": dict,
        "query": PageQuery,
        "body": Cancellation,
        **changes,
    }
    return Operation(**fields)


def parsed(
    template: str, raw_path: str, values: dict[str, str], query: str = "", body: Any = None
) -> Call:
    """Parse a request as the endpoint does; return its call.

    Args:
        values: the path's, by their names in braces, as the server has decoded them.
    """
    here = operation(template)
    scope = {"path": raw_path, "raw_path": raw_path.encode(), "path_params": values}
    call = call_of(
        path_texts=path_texts(scope, here.path),
        query_string=query.encode(),
        raw_path=raw_path.encode(),
        body=orjson.dumps(body),
        json={"reason": "error"} if body is None else body,
    )
    call.parse(here)
    return call


def refusal(*arguments: Any) -> ServiceError:
    with pytest.raises(ServiceError) as refused:
        parsed(*arguments)
    return refused.value


def test_a_request_is_given_as_its_classes() -> None:
    call = parsed(
        AUCTION, f"/v1/auctions/{WORKFLOW}/a", {"workflow_id": WORKFLOW, "node": "a"}, "limit=2"
    )
    assert call.path_values == {"workflow_id": WORKFLOW.lower(), "node": "a"}
    assert call.given(PageQuery).limit == 2
    assert call.given(Cancellation).reason == "error"


def test_all_problems_of_path_query_and_body_are_told_at_once() -> None:
    refused = refusal(
        CANCEL,
        "/v1/workflows/nonsense/cancel",
        {"workflow_id": "nonsense"},
        "limit=x&offset=-1",
        {"reason": "boredom", "details": 5},
    )
    assert refused.code is ErrorCode.INVALID_REQUEST
    paths = ["workflowId", "limit", "offset", "reason", "details"]
    assert [problem.path for problem in refused.problems] == paths
    assert refused.problems[0].got == "nonsense"


@pytest.mark.parametrize(
    ("template", "values", "what"),
    [
        (CANCEL, {"workflow_id": "nonsense"}, "the workflow nonsense"),
        (AUCTION, {"workflow_id": "nonsense", "node": "a"}, "the workflow nonsense is not"),
        (AUCTION, {"workflow_id": WORKFLOW, "node": "a#verify"}, "the node a#verify is not"),
        (AUCTION, {"workflow_id": "nonsense", "node": "a#verify"}, "the workflow nonsense is not"),
    ],
)
def test_a_path_that_can_name_nothing_is_not_known(
    template: str, values: dict[str, str], what: str
) -> None:
    refused = refusal(template, "/v1/x", values)
    assert refused.code is ErrorCode.NOT_FOUND
    assert what in refused.detail


def test_a_path_of_another_form_than_its_public_one_is_invalid() -> None:
    refused = refusal(PRICE, "/v1/capabilities/a b/price", {"capability_id": "a b"})
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert [problem.path for problem in refused.problems] == ["capabilityId"]


@pytest.mark.parametrize("sent", ["%00", "a%ED%A0%80", "%FF"])
def test_a_path_that_is_no_text_is_invalid_and_told_with_the_rest(sent: str) -> None:
    refused = refusal(CANCEL, f"/v1/workflows/{sent}/cancel", {"workflow_id": "x"}, "limit=x")
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert [problem.path for problem in refused.problems] == ["path", "limit"]


def test_a_query_that_no_database_keeps_is_told_with_the_rest() -> None:
    refused = refusal(
        PRICE, "/v1/capabilities/-/price", {"capability_id": "-"}, "cursor=%00&limit=x"
    )
    assert [problem.path for problem in refused.problems] == ["capabilityId", "cursor", "limit"]


@pytest.mark.parametrize(
    ("sent", "decoded", "did"),
    [
        ("did:net:a", "did:net:a", "did:net:a"),
        ("did%3Anet%3Aa", "did:net:a", "did:net:a"),
        ("did:web:host%3A8080", "did:web:host:8080", "did:web:host%3A8080"),
        ("did:web:host%253A8080", "did:web:host%3A8080", "did:web:host%3A8080"),
        ("did%3Aweb%3Ahost%253A8080", "did:web:host%3A8080", "did:web:host%3A8080"),
    ],
)
def test_a_did_is_read_raw_or_encoded_also_behind_doubled_slashes(
    sent: str, decoded: str, did: str
) -> None:
    for first in ("/v1", "//v1"):
        call = parsed(AGENT, f"{first}/agents/{sent}", {"did": decoded})
        assert call.path_values["did"] == did


def test_a_path_has_only_names_that_are_declared() -> None:
    with pytest.raises(AssertionError, match="budget_id"):
        operation("/v1/budget/{budget_id}")
