"""Which worker of `pytest -n` runs which tests, and in which order they are handed out.

A file is handed out whole: its fixtures are made once. Mutants share nothing and are handed out one
by one. Files that share a deployment are one unit, so that one worker alone starts it, and run in
the order of `UNITS`. The contract tests are two units of one length: as one they would outlast all
the others. What lasts longest is handed out first; the many short files fill up what is left, and
all workers end at about the same time.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling

# By the beginning of the path, in the order in which a unit's files run.
UNITS = {
    # The first four use the second region: it ends with the last of them.
    "tests/examples/test_readme.py": "contract",
    "tests/examples/test_demo_words.py": "contract",
    "tests/platform/test_listening.py": "contract",
    "tests/contract/test_federation.py": "contract",
    "tests/contract/": "contract",
    "tests/platform/test_wheels.py": "contract",
    "tests/examples/test_workflows_guide.py": "contract",
    "tests/platform/test_down.py": "contract",
    "tests/faults/test_due_identity.py": "victim",
    "tests/faults/test_frozen.py": "victim",
    "tests/faults/test_handover.py": "victim",
    "tests/faults/test_hostile_agents.py": "victim",
    "tests/faults/test_kills.py": "victim",
    "tests/faults/test_lost_actors.py": "victim",
    "tests/faults/test_outages.py": "victim",
    "tests/faults/test_newer_code.py": "victim",
    "tests/faults/test_supervisor.py": "victim",
}
# The contract tests up to this letter, but for those named above, are the second unit.
EARLY, EARLY_END = "contract, a to f", "g"
# The fixtures that start what the tests of these units share, in each unit anew.
SHARED = {
    "deployment": {"contract", EARLY},
    "demonstration": {"contract"},
    "victim": {"victim"},
}
# Has tests that share nothing: each is a unit.
ALONE = "tests/simulation/test_mutants.py"
# Longest first; everything else comes after them as it is collected. A name that no unit has, here
# or above, costs time and nothing else.
FIRST = (
    "contract",
    EARLY,
    "victim",
    "tests/faults/test_drain.py",
    "tests/platform/test_join.py",
    "tests/simulation/test_simulation.py",
    "tests/simulation/test_faults.py",
    "tests/ledger/test_money_machine.py",
    "tests/simulation/cluster/test_cluster.py",
    "tests/platform/test_embedded.py",
    "tests/faults/test_messages.py",
    "tests/simulation/test_proofs.py",
    "tests/ledger/test_group_commit.py",
    "tests/simulation/test_mutants.py",
    "tests/simulation/test_ledger_model.py",
    "tests/simulation/test_ledger_model_runs.py",
)
_PLACES = tuple(UNITS)


def unit_of(nodeid: str) -> str:
    """Return the name of what a test is handed out with."""
    file = nodeid.partition("::")[0]
    if file == ALONE:
        return nodeid
    folder, _, name = file.rpartition("/test_")
    if folder == "tests/contract" and name < EARLY_END and file not in UNITS:
        return EARLY
    return next((unit for start, unit in UNITS.items() if file.startswith(start)), file)


def place_in_unit(nodeid: str) -> int:
    """Return the rank of a test's file among those of its unit."""
    return next((n for n, start in enumerate(_PLACES) if nodeid.startswith(start)), 0)


class LongestFirst(LoadScopeScheduling):
    """Hands out units, the long ones first."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        longest = min(self.workqueue, key=self._rank)
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)

    def _rank(self, unit: str) -> int:
        file = unit.partition("::")[0]
        if file == ALONE and self.config.getoption("--minutes") is not None:
            return len(FIRST) + 1  # they would fill any time
        return FIRST.index(file) if file in FIRST else len(FIRST)
