"""The demonstration with any words: it prints what came of them, or says why nothing did."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.demo.document import served
from callboard.demo.processes import AGENTS, EXAMPLE, AgentProcesses
from callboard.demo.run import InputsMissing, run_workflow
from callboard.errors import CallboardError
from tests.platform.deployments import RunningDeployment

pytestmark = pytest.mark.slow


def test_the_demonstration_runs_from_any_words(
    second_region: RunningDeployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One start of agents for all: it takes longer than all the words together. No other agent
    may fit the words: the region's others are registered later.
    """
    with served(str(EXAMPLE / "article.html")) as page, AgentProcesses(tmp_path) as agents:
        addresses, running = agents.wait_ready(), agents.running()
        assert set(addresses) == set(AGENTS)
        for words, shown in (
            (
                "Read a web page and tell me how positive it is, plus list its main topics",
                (
                    "missing inputs: fetch.url",
                    "fetch.url is set to the demonstration's document",
                    "What sentiment returned",
                    '"phrase": "tide clock"',
                ),
            ),
            (f"Summarize {page} and write a report", ("The report", "## Tone")),
            (f"Fetch {page}", ("What fetch returned", "characters)")),
        ):
            assert run_workflow(second_region.home, addresses, page, words), words
            printed = capsys.readouterr().out
            assert [one for one in shown if one not in printed] == [], printed
        with pytest.raises(InputsMissing, match=r"^missing inputs summarise\.text:"):
            run_workflow(second_region.home, addresses, page, "Summarise the text")
        with pytest.raises(CallboardError, match="NO_CAPABILITY_MATCH"):
            run_workflow(second_region.home, addresses, page, "Brew xyzzy")
        # A failure for good: one that may pass is retried for 36 s.
        absent = f"{second_region.url}/absent"
        unread = f"Summarize {absent} and write a report"
        assert not run_workflow(second_region.home, addresses, page, unread)
        (told,) = capsys.readouterr().err.splitlines()
        assert told.startswith("callboard: node fetch failed:")
        assert f"{absent} answered 404" in told
    assert not any(Path(f"/proc/{pid}").exists() for pid in running)
