"""What every path does alike: errors, types, sizes, depth, methods, ids, rate limits.

Spec: Errors, Limits.
"""

from __future__ import annotations

import json

import httpx
import pytest

from tests.contract.conftest import Caller, MakeCaller, answer, refusal, wait

PUBLISH = "/v1/workflows/publish"
JSON_TYPE = {"content-type": "application/json"}


def test_a_reply_nobody_wants_is_406(payer: Caller) -> None:
    response = payer.http.get("/v1/ledger/balance", headers={"accept": "text/csv"})
    refusal(response, 406, "NOT_ACCEPTABLE")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_a_body_of_another_type_is_415(payer: Caller, content_type: str) -> None:
    response = payer.http.post(PUBLISH, content=b"{}", headers={"content-type": content_type})
    refusal(response, 415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("body", [b"", b"nope", b"[", b'{"nodes": NaN}', b"\xff\xfe"])
def test_a_body_that_is_not_json_is_400(payer: Caller, body: bytes) -> None:
    problems = refusal(
        payer.http.post(PUBLISH, content=body, headers=JSON_TYPE), 400, "INVALID_REQUEST"
    )
    assert problems["errors"][0]["path"] == "$"


def test_a_body_above_512_KiB_is_413(payer: Caller) -> None:
    body = b'{"nodes": {"a": "' + b"x" * (512 * 1024) + b'"}}'
    response = payer.http.post(PUBLISH, content=body, headers=JSON_TYPE)
    refusal(response, 413, "PAYLOAD_TOO_LARGE")


def test_a_chunked_body_is_measured_while_it_is_read(payer: Caller) -> None:
    response = payer.http.post(
        PUBLISH, content=(b" " * 65_536 for _ in range(12)), headers=JSON_TYPE
    )
    refusal(response, 413, "PAYLOAD_TOO_LARGE")


def test_a_body_deeper_than_64_levels_is_400(payer: Caller) -> None:
    deep = '{"nodes":' + "[" * 64 + "]" * 64 + "}"
    response = payer.http.post(PUBLISH, content=deep, headers=JSON_TYPE)
    assert "64" in refusal(response, 400, "INVALID_REQUEST")["detail"]


def test_a_payload_nested_to_the_limit_is_accepted(payer: Caller) -> None:
    # nodes, a, payload and the body itself are four of the 64 levels.
    payload = json.loads('{"x":' * 60 + "1" + "}" * 60)
    manifest = {"nodes": {"a": {"capabilityId": "cap.a.v1", "payload": payload}}, "dryRun": True}
    answer(payer.publish(manifest))


def test_x_request_id_is_echoed_once(payer: Caller) -> None:
    response = payer.http.get("/v1/nothing", headers={"x-request-id": "my-id-7"})
    assert response.headers.get_list("x-request-id") == ["my-id-7"]
    assert response.json()["requestId"] == "my-id-7"


def test_every_reply_has_an_x_request_id(anonymous: httpx.Client) -> None:
    ids = {anonymous.get("/health").headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "offset=-1", "cursor=%%%", "status=done"]
)
def test_a_bad_list_query_is_400(payer: Caller, query: str) -> None:
    refusal(payer.http.get(f"/v1/workflows?{query}"), 400, "INVALID_REQUEST")


def test_bulk_operations_are_limited_to_10_a_minute(make_caller: MakeCaller) -> None:
    limited = make_caller(rateClass="standard")
    body = {"workflows": [{"nodes": {}}]}
    path = f"{PUBLISH}/bulk"
    responses = [limited.http.post(path, json=body) for _ in range(11)]
    assert [response.status_code for response in responses] == [200] * 10 + [429]
    refusal(responses[-1], 429, "RATE_LIMITED")
    assert 1 <= int(responses[-1].headers["retry-after"]) <= 60
    assert responses[0].headers["ratelimit-policy"] == '"bulk";q=10;w=60'
    assert responses[0].headers["x-ratelimit-limit"] == "10"
    assert [int(r.headers["x-ratelimit-remaining"]) for r in responses[:10]] == list(
        range(9, -1, -1)
    )


def test_write_operations_are_limited_to_100_a_minute_and_dry_runs_are_reads(
    make_caller: MakeCaller,
) -> None:
    limited = make_caller(rateClass="standard")
    manifest = {"nodes": {"a": {"capabilityId": "cap.a.v1"}}, "dryRun": True}
    dry = limited.publish(manifest)
    assert dry.headers["ratelimit-policy"] == '"read";q=1000;w=60'
    statuses = [limited.publish({"nodes": {}}).status_code for _ in range(101)]
    assert statuses == [400] * 100 + [429]
    assert limited.http.get("/v1/ledger/balance").status_code == 200


def test_a_keys_own_limits_replace_those_of_its_class(make_caller: MakeCaller) -> None:
    limited = make_caller(rateClass="standard", rateLimits={"read": 2})
    statuses = [limited.http.get("/v1/ledger/balance").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_an_unlimited_key_has_no_rate_headers(payer: Caller) -> None:
    assert "ratelimit" not in payer.http.get("/v1/ledger/balance").headers


def test_health_shows_components_and_versions_without_a_key(anonymous: httpx.Client) -> None:
    # On a busy machine a part of it may be silent for a moment.
    wait(lambda: anonymous.get("/health").status_code == 200, "a healthy service")
    body = answer(anonymous.get("/health"))
    assert body["status"] == "healthy"
    assert body["version"]
    assert set(body["components"]) == {
        "ledger",
        "postgres",
        "workflows",
        "timekeeper",
        "audit",
        "books",
    }
    assert set(body["components"].values()) == {"healthy"}
    assert (body["workflowSpecVersion"], body["settlementSpecVersion"]) == ("0.4", "0.1")


def test_ready_for_load_balancers(anonymous: httpx.Client) -> None:
    wait(lambda: anonymous.get("/ready").status_code == 200, "a ready service")
    assert answer(anonymous.get("/ready"))["status"] == "ready"


def test_openapi_lists_every_path_with_its_statuses(anonymous: httpx.Client) -> None:
    document = answer(anonymous.get("/openapi.json"))
    publish = document["paths"][PUBLISH]["post"]
    assert {"200", "400", "401", "403", "405", "406", "409", "413", "415", "429", "503"} <= set(
        publish["responses"]
    )
    assert publish["requestBody"]["content"]["application/json"]["example"]["nodes"]


def test_docs_render_offline(anonymous: httpx.Client) -> None:
    page = anonymous.get("/docs", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert PUBLISH in page.text
    assert "src=" not in page.text
    assert "https://unpkg" not in page.text
