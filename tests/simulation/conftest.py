"""`--seed N` replays one simulated run instead of drawing the usual ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.ledger.conftest import auditor  # noqa: F401 (a fixture)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, known when this folder or a file in it is named on the command line."""
    parser.addoption("--seed", type=int, default=None, help="replay this simulated run alone")
    parser.addoption("--workflows", type=int, default=200_000, help="how many the soak publishes")


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """Owners that fail by the thousand log by the thousand; the checks say what is wrong."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def only_seed(request: pytest.FixtureRequest) -> int | None:
    """The seed to replay, or None."""
    seed = request.config.getoption("--seed", default=None)
    assert seed is None or isinstance(seed, int)
    return seed


@pytest.fixture
def soak_workflows(request: pytest.FixtureRequest) -> int:
    """How many workflows the soak with all defects publishes, at least."""
    return int(request.config.getoption("--workflows", default=200_000))
