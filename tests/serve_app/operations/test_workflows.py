"""What a publish counts as, found out before anything of it is parsed."""

from __future__ import annotations

import pytest

from serve_app.callers.limits import RateClass
from serve_app.operations.work.workflows import OPERATIONS
from tests.serve_app.parts import call_of

(PUBLISH,) = (one for one in OPERATIONS if one.path == "/v1/workflows/publish")


def rate_of(body: bytes) -> RateClass:
    """Return what a publish with this body counts as."""
    assert PUBLISH.rate_of is not None
    return PUBLISH.rate_of(call_of(raw_path=PUBLISH.path.encode(), body=body))


@pytest.mark.parametrize(
    ("body", "rate"),
    [
        (b'{"nodes":{}}', RateClass.WRITE),
        (b'{"nodes":{},"dryRun":true}', RateClass.READ),
        (b' {"dryRun" : true , "nodes":{}}', RateClass.READ),
        (b'{"dryRun":false}', RateClass.WRITE),
        (b'{"dryRun":1}', RateClass.WRITE),
        (b'{"dryRun":"true"}', RateClass.WRITE),
        (b'{"dryRun":null}', RateClass.WRITE),
        (b'{"nodes":{"dryRun":true}}', RateClass.WRITE),
        (b'{"dryRun":true,"dryRun":false}', RateClass.WRITE),
        (b'{"dryRun":false,"dryRun":true}', RateClass.READ),
        (b'["dryRun"]', RateClass.WRITE),
        (b'"dryRun"', RateClass.WRITE),
        (b'{"dryRun":true', RateClass.WRITE),
        (b'{"dryRun":true,"a":' + b"[" * 100_000, RateClass.WRITE),
    ],
)
def test_a_dry_run_counts_as_a_read_and_another_publish_as_a_write(
    body: bytes, rate: RateClass
) -> None:
    assert rate_of(body) is rate


def test_a_publish_that_names_a_dry_run_is_counted_before_it_is_parsed() -> None:
    """A refusal of 512 KiB of nested lists held the loop for 80 ms, for callers without calls."""
    # JSON to a scan that only looks where a value ends, and to no parser that builds it.
    assert rate_of(b'{"dryRun":true,"nodes":{"a":1e999}}') is RateClass.READ
