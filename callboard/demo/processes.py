"""The demonstration's processes: six agents, and the command line of the supervisor.

Each agent is a program of `examples/article_report` that the demonstration calls only over HTTP.
An agent ends when its standard input closes, so no agent outlives a killed demonstration.
"""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

AGENTS = ("fetch", "extract", "summarise", "sentiment", "keywords", "report")
PROGRAMS = {name: ("-m", f"examples.article_report.{name}") for name in AGENTS}
READY_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "article_report"


def supervisor(*arguments: str, **options: object) -> list[str]:
    """Return the command that runs the supervisor.

    Args:
        arguments: the verb and further arguments; they are passed on unchanged.
        options: the verb's options; None and False omit an option, True adds a flag.
    """
    words = [sys.executable, "-m", "serve_app.supervisor", *arguments]
    for name, value in options.items():
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return words


class AgentFailed(Exception):
    """An agent did not start.

    Args:
        name: the agent's name.
        reason: why it did not start.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"the {self.name} agent did not start: {self.reason}"


@dataclass
class AgentProcesses:
    """The agents' processes, which run while the `with` block runs.

    Args:
        logs: the folder for the agents' log files.
        programs: the interpreter's arguments that run each agent, by the agent's name.
    """

    logs: Path
    programs: Mapping[str, Sequence[str]] = field(default_factory=lambda: PROGRAMS)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _open_logs: list[IO[bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        for name, arguments in self.programs.items():
            log = (self.logs / f"agent-{name}.log").open("wb")
            self._open_logs.append(log)
            self._running[name] = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C must reach only the demonstration, which ends the agents in order.
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._running.values():
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for log in self._open_logs:
            log.close()

    def running(self) -> list[int]:
        """Return the process ids of the agents that have not ended."""
        return [process.pid for process in self._running.values() if process.poll() is None]

    def wait_ready(self) -> dict[str, str]:
        """Wait until all agents have announced their addresses; return the addresses by name.

        Raises:
            AgentFailed: an agent ended, or did not announce its address in time.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        addresses: dict[str, str] = {}
        with selectors.DefaultSelector() as selector:
            for name, process in self._running.items():
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, name)
            while len(addresses) < len(self._running):
                ready = selector.select(deadline - time.monotonic())
                if not ready:
                    missing = next(name for name in self._running if name not in addresses)
                    raise AgentFailed(missing, f"silent for {READY_TIMEOUT_S:.0f} s")
                for key, _ in ready:
                    name = str(key.data)
                    selector.unregister(key.fileobj)
                    addresses[name] = self._address(name)
        return addresses

    def _address(self, name: str) -> str:
        stdout = self._running[name].stdout
        assert stdout is not None
        # "did:example:fetch ready at http://127.0.0.1:40001 (cap.web.fetch.v1)"
        announced = stdout.readline().decode().split()
        if announced[1:3] != ["ready", "at"]:
            log = self.logs / f"agent-{name}.log"
            # The agent has closed its output. Its log is complete when the process has ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running[name].wait(_END_TIMEOUT_S)
            lines = log.read_text(errors="replace").strip().splitlines()
            raise AgentFailed(name, f"{lines[-1] if lines else 'no output'} (see {log})")
        return announced[3]
