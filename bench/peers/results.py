"""The results of a run in one JSON file, written after every round: a run can be resumed."""

from __future__ import annotations

import dataclasses
import datetime
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.loads import Round, Scale

FORMAT = 1


class UnknownResults(SystemExit):
    """A file holds no results, or those of another format."""


@dataclass(slots=True)
class Results:
    """What a run has measured so far.

    Attributes:
        path: of the JSON file.
        began: date and time, UTC.
        commit: of the service that is measured; a run is resumed with the same.
        scale: how long rounds last; a run is resumed with its own.
        machine: what it runs on.
        systems: versions, settings and the servers' answers about durability, by system.
        rounds: in the order in which they were measured.
    """

    path: Path
    began: str
    commit: str
    scale: Scale
    machine: dict[str, str]
    systems: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)

    @classmethod
    def new(
        cls, folder: Path, prefix: str, commit: str, scale: Scale, machine: dict[str, str]
    ) -> Results:
        """Return empty results with a file of their own, named by prefix, date and time."""
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.datetime.now(datetime.UTC)
        path = folder / f"{prefix}-{now:%Y%m%dT%H%M%SZ}.json"
        return cls(path, f"{now:%Y-%m-%d %H:%M} UTC", commit, scale, machine)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return the results in a file.

        Raises:
            UnknownResults: it is none of this bench, or of another format.
        """
        try:
            found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UnknownResults(f"{path}: {error}") from None
        if found.get("format") != FORMAT:
            raise UnknownResults(f"{path}: got format {found.get('format')}, expected {FORMAT}")
        return cls(
            path,
            found["began"],
            found["commit"],
            Scale(**found["scale"]),
            found["machine"],
            found["systems"],
            [Round(**one) for one in found["rounds"]],
        )

    def read_earlier(self) -> list[Results]:
        """Return the results of runs of the same kind in the same folder, up to these, by date."""
        kind = self.path.name.partition("-")[0]
        found = []
        for path in sorted(self.path.parent.glob(f"{kind}-*.json")):
            if path.name <= self.path.name:
                try:
                    found.append(Results.read(path))
                except UnknownResults:
                    continue  # a run of an older bench
        return found

    def has(self, workload: str, system: str, number: int) -> bool:
        """Say whether a round is measured already."""
        return any(
            (one.workload, one.system, one.number) == (workload, system, number)
            for one in self.rounds
        )

    def add(self, measured: Round) -> None:
        """Add a round and write the file: what is measured survives the end of this process."""
        self.rounds.append(measured)
        self.write()

    def write(self) -> None:
        """Replace the file at once."""
        content = {
            "format": FORMAT,
            "began": self.began,
            "commit": self.commit,
            "scale": dataclasses.asdict(self.scale),
            "machine": self.machine,
            "systems": self.systems,
            "rounds": [dataclasses.asdict(one) for one in self.rounds],
        }
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        fresh.rename(self.path)
