"""What is handed out together, and that the lists name what there is."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import (
    pytest_collection_finish,
    pytest_fixture_setup,
    pytest_runtest_teardown,
)
from tests.workers import ALONE, FIRST, SHARED, UNITS, place_in_unit, unit_of

ROOT = Path(__file__).resolve().parent.parent


def test_every_listed_path_exists() -> None:
    paths = {*UNITS, *FIRST, ALONE} - {*UNITS.values()}
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("fixture", "unit"), SHARED.items())
def test_tests_that_share_a_deployment_are_one_unit(
    request: pytest.FixtureRequest, fixture: str, unit: str
) -> None:
    users = [item for item in request.session.items if fixture in getattr(item, "fixturenames", ())]
    assert {unit_of(item.nodeid) for item in users} <= {unit}


def test_files_of_a_unit_run_in_its_order() -> None:
    files = [f"{path}test_a.py" if path.endswith("/") else path for path in UNITS]
    places = [place_in_unit(f"{file}::test_b") for file in files]
    assert places == sorted(set(places))


def test_a_shared_deployment_ends_with_the_last_test_that_uses_it() -> None:
    """Else it runs, and takes a fifth of a core, until the last test of all."""
    ended: list[str] = []
    session: Any = SimpleNamespace(stash=pytest.Stash(), items=[])
    names = (["victim"], [], ["victim"], [])
    for number, fixturenames in enumerate(names):
        session.items.append(
            SimpleNamespace(nodeid=str(number), fixturenames=fixturenames, session=session)
        )
    pytest_collection_finish(session)
    definition: Any = SimpleNamespace(argname="victim", finish=lambda _: ended.append("victim"))
    setting_up: Any = SimpleNamespace(session=session)
    run(pytest_fixture_setup(definition, setting_up))
    told = []
    for item in session.items:
        run(pytest_runtest_teardown(item))
        told.append(list(ended))
    assert told == [[], [], ["victim"], ["victim"]]


def run(hook: Generator[None, Any, Any]) -> None:
    """Run a hook around nothing."""
    next(hook)
    with suppress(StopIteration):
        hook.send(None)


def test_a_file_is_a_unit_and_each_hunted_mutant_is_one() -> None:
    assert unit_of("tests/core/test_ids.py::test_a[b::c]") == "tests/core/test_ids.py"
    hunted = [f"{ALONE}::test_sampled_mutant_is_caught[{name}]" for name in "ab"]
    assert len({unit_of(nodeid) for nodeid in hunted}) == 2
