"""A simulation that sees nothing wrong proves nothing: planted defects must be caught.

Three of them in every run, all of them in the long one. `mutants/hunt.py` lists who caught which.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutants.hunt import ROOT, Mutant, caught_by, mutants

SAMPLE = ("pays a node twice", "dispatches before the commit", "skips the fence")
MUTANTS_MIN = 270


def test_every_patch_fits_its_file_and_changes_it(tmp_path: Path) -> None:
    known = mutants()
    assert len(known) >= MUTANTS_MIN
    assert len({mutant.says for mutant in known}) == len(known)
    assert {mutant.says for mutant in known} >= set(SAMPLE)
    for mutant in known:
        assert mutant.file.startswith(("core/", "actors/", "ledger/"))
        copy = tmp_path / mutant.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / mutant.file, copy)
        before = copy.read_text(encoding="utf-8").splitlines()
        mutant.apply(tmp_path)
        after = copy.read_text(encoding="utf-8").splitlines()
        assert sum(one != two for one, two in zip(before, after, strict=True)) == 1, mutant


@pytest.mark.slow
def test_every_changed_line_can_run(tmp_path: Path) -> None:
    """Code that names what is not there fails every test, and the test has not seen the defect."""
    for number, mutant in enumerate(mutants()):
        copy = tmp_path / f"m{number}" / mutant.file
        copy.parent.mkdir(parents=True)
        shutil.copy(ROOT / mutant.file, copy)
        mutant.apply(tmp_path / f"m{number}")
    checked = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"]
    rules = ["--select", "E9,F821,F822,F823", str(tmp_path)]
    done = subprocess.run([*checked, *rules], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", [m for m in mutants() if m.says in SAMPLE], ids=lambda mutant: mutant.says
)
def test_sampled_mutant_is_caught(mutant: Mutant) -> None:
    assert caught_by(mutant) is not None


@pytest.mark.soak
def test_tree_without_a_defect_passes() -> None:
    """Goal: what is caught below is caught because of its defect."""
    assert caught_by(None) is None


@pytest.mark.soak
@pytest.mark.parametrize("tests", sorted({m.tests for m in mutants() if m.tests}))
def test_tests_that_a_mutant_names_pass_without_it(tests: str) -> None:
    """A test that is red anyway catches every mutant that names it."""
    assert caught_by(None, tests) is None


@pytest.mark.soak
@pytest.mark.parametrize(
    "mutant", [m for m in mutants() if m.says not in SAMPLE], ids=lambda mutant: mutant.says
)
def test_mutant_is_caught(mutant: Mutant) -> None:
    assert caught_by(mutant) is not None
