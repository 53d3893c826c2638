"""The release that a deployment runs: an interpreter, a folder of packages and a generation.

`callboard upgrade` stores the new release in a file of the home before it replaces processes. When
the supervisor restarts a process after that, it uses the stored release. `callboard up` and `join`
remove the file, and start the processes from the supervisor's own release. Decision
cluster-and-releases.
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
    """The place of a deployment's code.

    Attributes:
        python: the interpreter of the release's environment.
        folder: the folder with the release's packages.
        generation: the id of the upgrade to this release; empty after `callboard up` or `join`.
    """

    python: str
    folder: str
    generation: str = ""

    @classmethod
    def own(cls) -> Release:
        """Return the release of this process."""
        return cls(sys.executable, str(_FOLDER))

    @classmethod
    def in_folder(cls, folder: Path, generation: str) -> Release:
        """Return the release in a folder, whose environment is in `.venv`.

        Raises:
            DeploymentError: the folder has no release.
        """
        release = cls(str(folder / ".venv" / "bin" / "python"), str(folder), generation)
        release.check()
        return release

    @classmethod
    def of_home(cls, home: Path) -> Release:
        """Return the release that an upgrade has stored in a home, else this process's release.

        Raises:
            DeploymentError: the file is malformed, or its release does not exist any more.
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
        """Check that the interpreter and the packages exist.

        Raises:
            DeploymentError: one of them is missing.
        """
        for path in (Path(self.python), Path(self.folder, "serve_app")):
            if not path.exists():
                raise DeploymentError(f"there is no release in {self.folder}: {path} is missing")

    def by_plain_path(self, run_folder: Path) -> Release:
        """Return the release with an interpreter path that has no special characters.

        Ray splits the commands of its workers at spaces, and a shell interprets them. If the path
        has such characters, a link to the environment is created in the run folder.

        Args:
            run_folder: the deployment's run folder, which must exist.
        """
        if is_plain(self.python):
            return self
        python = Path(self.python)
        link = run_folder / f"e{hashlib.sha256(os.fsencode(python)).hexdigest()[:8]}"
        link.unlink(missing_ok=True)
        link.symlink_to(python.parent.parent)
        return replace(self, python=str(link / python.parent.name / python.name))

    def choose(self, home: Path) -> None:
        """Store this release in a home, so that the supervisor restarts processes from it."""
        fresh = home / f"{FILE}.new"
        fresh.write_text(json.dumps(asdict(self)), encoding="utf-8")
        fresh.rename(home / FILE)

    def environment(self) -> dict[str, str]:
        """Return the environment variables of processes of this release."""
        own = {"PYTHONPATH": self.folder}
        return own | ({"CALLBOARD_GENERATION": self.generation} if self.generation else {})


def forget_release(home: Path) -> None:
    """Remove the stored release of a home, so that the supervisor uses its own release."""
    (home / FILE).unlink(missing_ok=True)
