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
from tests.workers import ALONE, EARLY, FIRST, SHARED, UNITS, place_in_unit, unit_of

ROOT = Path(__file__).resolve().parent.parent


def test_every_listed_path_exists() -> None:
    paths = {*UNITS, *FIRST, ALONE} - {*UNITS.values(), EARLY}
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("fixture", "units"), SHARED.items())
def test_tests_that_share_a_deployment_are_in_its_units(
    request: pytest.FixtureRequest, fixture: str, units: set[str]
) -> None:
    users = [item for item in request.session.items if fixture in getattr(item, "fixturenames", ())]
    assert {unit_of(item.nodeid) for item in users} <= units


def test_files_of_a_unit_run_in_its_order() -> None:
    files = [f"{path}test_a.py" if path.endswith("/") else path for path in UNITS]
    places = [place_in_unit(f"{file}::test_b") for file in files]
    assert places == sorted(set(places))


@pytest.mark.parametrize(("is_worker", "ends"), [(False, [3]), (True, [1, 3])])
def test_a_shared_deployment_ends_with_the_last_test_that_uses_it(
    is_worker: bool, ends: list[int]
) -> None:
    """Else it runs, and takes a fifth of a core, until the last test of all."""
    ended: list[int] = []
    config = SimpleNamespace(workerinput={}) if is_worker else SimpleNamespace()
    session: Any = SimpleNamespace(stash=pytest.Stash(), items=[], config=config)
    for file, fixturenames in (("z", ["deployment"]), ("z", ["deployment"]), ("a", []),
                               ("a", ["deployment"]), ("a", [])):  # fmt: skip
        nodeid = f"tests/contract/test_{file}.py::test_{len(session.items)}"
        session.items.append(
            SimpleNamespace(nodeid=nodeid, fixturenames=fixturenames, session=session)
        )
    pytest_collection_finish(session)
    for number, item in enumerate(session.items):
        if item.fixturenames:  # the fixture is set up, if it is not
            definition: Any = SimpleNamespace(
                argname="deployment", finish=lambda _, number=number: ended.append(number)
            )
            run(pytest_fixture_setup(definition, SimpleNamespace(session=session)))
        run(pytest_runtest_teardown(item))
    assert ended == ends


def run(hook: Generator[None, Any, Any]) -> None:
    """Run a hook around nothing."""
    next(hook)
    with suppress(StopIteration):
        hook.send(None)


def test_a_file_is_a_unit_and_each_hunted_mutant_is_one() -> None:
    assert unit_of("tests/core/test_ids.py::test_a[b::c]") == "tests/core/test_ids.py"
    hunted = [f"{ALONE}::test_sampled_mutant_is_caught[{name}]" for name in "ab"]
    assert len({unit_of(nodeid) for nodeid in hunted}) == 2
