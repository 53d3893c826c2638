"""What is handed out together, and that the lists name what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers import ALONE, FIRST, UNITS, unit_of

ROOT = Path(__file__).resolve().parent.parent


def test_every_listed_path_exists() -> None:
    paths = {*UNITS, *FIRST, ALONE} - {*UNITS.values()}
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("fixture", "unit"), [("victim", "victim"), ("make_agent", "contract")])
def test_tests_that_share_a_deployment_are_one_unit(
    request: pytest.FixtureRequest, fixture: str, unit: str
) -> None:
    users = [item for item in request.session.items if fixture in getattr(item, "fixturenames", ())]
    assert {unit_of(item.nodeid) for item in users} <= {unit}


def test_a_file_is_a_unit_and_each_hunted_mutant_is_one() -> None:
    assert unit_of("tests/core/test_ids.py::test_a[b::c]") == "tests/core/test_ids.py"
    hunted = [f"{ALONE}::test_sampled_mutant_is_caught[{name}]" for name in "ab"]
    assert len({unit_of(nodeid) for nodeid in hunted}) == 2
