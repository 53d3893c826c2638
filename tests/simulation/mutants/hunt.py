"""Plant each defect of the lists beside this file in a copy of the tree; see whether it is noticed.

`python -m tests.simulation.mutants.hunt [words]` lists, for every mutant (or those whose sentence
contains the words), the seed or the test that caught it. Exit code 1 when one survived.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PATCHES = (
    "patches.toml",
    "isolation.toml",
    "ledger.toml",
    "shards.toml",
    "market.toml",
    "cluster.toml",
    "triggers.toml",
    "trigger_runs.toml",
)
COPIED = ("core", "actors", "ledger", "federation", "tests", "pyproject.toml")
# The simulation first: whatever it cannot see, the runner's own tests must.
TESTS = (
    "tests/simulation/test_simulation.py",
    "tests/simulation/test_proofs.py",
    "tests/simulation/test_faults.py",
    "tests/simulation/test_expensive_reads.py",
    "tests/actors/engine/test_runner.py",
    "tests/actors/engine/test_revoking.py",
    "tests/actors/workflows/test_publish_estimate.py",
    "tests/core/workflow",
)
TIMEOUT_S = 1_200
_SEED = re.compile(r"--seed (\d+)")
_FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted defect. `tests`: who is to catch it; none: `TESTS` without the slow ones."""

    says: str
    file: str
    old: str
    new: str
    nth: int = 1
    tests: str = ""

    def apply(self, tree: Path) -> None:
        """Change the one line. Raises LookupError when the line is not there (any more)."""
        path = tree / self.file
        lines = path.read_text(encoding="utf-8").splitlines()
        places = [number for number, line in enumerate(lines) if line.strip() == self.old]
        if len(places) < self.nth:
            raise LookupError(f"{self.file}: {len(places)} lines read {self.old!r}")
        place = places[self.nth - 1]
        indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
        lines[place] = indent + self.new
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def mutants() -> list[Mutant]:
    """Return every mutant of the list."""
    listed = [tomllib.loads(Path(__file__).with_name(name).read_text()) for name in PATCHES]
    return [Mutant(**entry) for one in listed for entry in one["mutant"]]


@contextmanager
def tree_copy() -> Iterator[Path]:
    """Yield a copy of what the tests need, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="callboard-mutant-") as folder:
        tree = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                # With what is compiled, which is good for as long as its file is not changed; what
                # another process compiles now has another name until it is done.
                shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.pyc.*"))
            else:
                shutil.copy(ROOT / name, tree / name)
        yield tree


def caught_by(mutant: Mutant | None, tests: str = "") -> str | None:
    """Return the seed and the test that fail in a copy with this defect, None when none does.

    Args:
        mutant: the defect; None: there is none.
        tests: who is to catch it instead of those that the mutant names.

    Raises RuntimeError when the tests did not run: a defect that breaks the import proves nothing.
    """
    with tree_copy() as tree:
        if mutant is not None:
            mutant.apply(tree)
        named = tests or ("" if mutant is None else mutant.tests)
        chosen = ["-m", "not soak", named] if named else ["-m", "not slow and not soak", *TESTS]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *chosen],
            cwd=tree, capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
    if done.returncode == 0:
        return None
    failed = _FAILED.search(done.stdout)
    if done.returncode != 1 or failed is None:
        raise RuntimeError(f"{mutant}: the tests did not run\n{done.stdout}{done.stderr}")
    seed = _SEED.search(done.stdout)
    return f"seed {seed[1]}, {failed[1]}" if seed is not None else failed[1]


def main(words: str = "") -> int:
    """Print one line per mutant; return how many survived, at most 1."""
    survived = 0
    for mutant in mutants():
        if words in mutant.says:
            by = caught_by(mutant)
            survived += by is None
            print(f"{mutant.says:60} {by or 'SURVIVED'}", flush=True)  # noqa: T201
    return min(survived, 1)


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
