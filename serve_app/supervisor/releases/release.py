"""The release that a deployment runs: an interpreter, a folder of packages, which upgrade chose it.

`callboard upgrade` writes it into the home before it replaces anything, and the supervisor starts
what has ended in that release from then on. A start by a person chooses anew: the release is then
the one that the supervisor itself is of, and the file goes. Decision cluster-and-releases.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from serve_app.supervisor.deployment import DeploymentError, is_plain

FILE = "release.json"
_FOLDER = Path(__file__).resolve().parent.parent.parent.parent


@dataclass(frozen=True, slots=True)
class Release:
    """Where the code of a deployment lies.

    Attributes:
        python: the interpreter of its environment.
        folder: where its packages lie.
        generation: of the upgrade that chose it; empty: a start did.
    """

    python: str
    folder: str
    generation: str = ""

    @classmethod
    def own(cls) -> Release:
        """Return the release that this process is of."""
        return cls(sys.executable, str(_FOLDER))

    @classmethod
    def in_folder(cls, folder: Path, generation: str) -> Release:
        """Return the release of a checkout, which has its environment in `.venv`.

        Raises:
            DeploymentError: there is none.
        """
        release = cls(str(folder / ".venv" / "bin" / "python"), str(folder), generation)
        release.check()
        return release

    @classmethod
    def of_home(cls, home: Path) -> Release:
        """Return the release that an upgrade has chosen for a home, else this process's own.

        Raises:
            DeploymentError: the file does not say which one, or it is not there any more.
        """
        file = home / FILE
        if not file.exists():
            return cls.own()
        try:
            release = cls(**json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise DeploymentError(f"{file} does not name a release: see `callboard up`") from None
        release.check()
        return release

    def check(self) -> None:
        """Check that it is there.

        Raises:
            DeploymentError: it is not.
        """
        for path in (Path(self.python), Path(self.folder, "serve_app")):
            if not path.exists():
                raise DeploymentError(f"there is no release in {self.folder}: {path} is missing")

    def by_plain_path(self, run_folder: Path) -> Release:
        """Return the same release with an interpreter whose path Ray can write into a command.

        Ray splits the commands of its workers at spaces, and lets a shell read them. A link in the
        run folder then stands for the environment.

        Args:
            run_folder: the deployment's; it is there.
        """
        if is_plain(self.python):
            return self
        python = Path(self.python)
        link = run_folder / f"e{hashlib.sha256(os.fsencode(python)).hexdigest()[:8]}"
        link.unlink(missing_ok=True)
        link.symlink_to(python.parent.parent)
        return replace(self, python=str(link / python.parent.name / python.name))

    def choose(self, home: Path) -> None:
        """Let the supervisor of a home start what has ended in this release from now on."""
        fresh = home / f"{FILE}.new"
        fresh.write_text(json.dumps(asdict(self)), encoding="utf-8")
        fresh.rename(home / FILE)

    def environment(self) -> dict[str, str]:
        """Return the variables of processes that are of this release."""
        own = {"PYTHONPATH": self.folder}
        return own | ({"CALLBOARD_GENERATION": self.generation} if self.generation else {})


def forget_release(home: Path) -> None:
    """Let the supervisor of a home start what has ended in its own release."""
    (home / FILE).unlink(missing_ok=True)
