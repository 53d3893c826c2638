"""A failed contract test shows what the service logged meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.contract.conftest import logged_since

ROOT = Path(__file__).resolve().parents[2]
_FAILING = """
from types import SimpleNamespace
import pytest
from pathlib import Path
from tests.contract.conftest import pytest_runtest_makereport

@pytest.fixture
def deployment():
    return SimpleNamespace(home=Path(__file__).parent)

def test_that_fails(deployment):
    assert False

def test_that_passes(deployment):
    pass
"""


def line(at_s: float, event: str) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))
    return json.dumps({"at": f"{at}.000", "level": "info", "event": event}) + "\n"


def test_lines_of_all_logs_since_the_test_began_are_shown_in_order(tmp_path: Path) -> None:
    now_s = time.time()
    (tmp_path / "ledger.jsonl").write_text(line(now_s - 9, "old") + line(now_s + 1, "second"))
    (tmp_path / "api.jsonl").write_text(line(now_s, "first") + "a line without a time\n")
    shown = logged_since(tmp_path, now_s)
    assert [json.loads(one.rpartition(" (")[0])["event"] for one in shown] == ["first", "second"]
    assert [one.rpartition(" (")[2] for one in shown] == ["api)", "ledger)"]


def test_the_newest_sixty_lines_are_shown(tmp_path: Path) -> None:
    (tmp_path / "api.jsonl").write_text("".join(line(n, f"n{n}") for n in range(100)))
    shown = logged_since(tmp_path, 0)
    assert len(shown) == 60
    assert "n99" in shown[-1]


def test_a_failed_test_alone_has_the_section(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "api.jsonl").write_text(line(time.time() + 60, "request failed"))
    (tmp_path / "conftest.py").write_text(
        "from tests.contract.conftest import pytest_runtest_makereport\n"
    )
    (tmp_path / "test_it.py").write_text(_FAILING)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path / "test_it.py")],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert "1 failed, 1 passed" in run.stdout
    assert run.stdout.count("Log of the service") == 1
    assert run.stdout.count("request failed") == 1
