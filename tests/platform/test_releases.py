"""A supervisor starts what has ended in the release of the last upgrade, else in its own."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.cluster.runtime import UpgradeFailed
from actors.transport.names import workflow_actor
from core.settings import Settings
from core.shards.lease_messages import Lease, MemberState
from serve_app.supervisor.deployment import DeploymentError
from serve_app.supervisor.releases.release import FILE, Release, forget_release
from serve_app.supervisor.releases.upgrade import Upgrade, _check_not_drained
from serve_app.supervisor.releases.upgrade_start import upgrade
from tests.actors.gateway.maps import member
from tests.platform.deployments import ROOT


def release_in(folder: Path) -> Path:
    """Make what looks like a release and return its folder."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / "serve_app").mkdir()
    return folder


def test_without_an_upgrade_it_is_the_supervisors_own(tmp_path: Path) -> None:
    assert Release.of_home(tmp_path) == Release(sys.executable, str(ROOT))
    assert Release.own().environment() == {"PYTHONPATH": str(ROOT)}


def test_after_an_upgrade_it_is_the_chosen_one_until_a_start(tmp_path: Path) -> None:
    folder = release_in(tmp_path / "newer")
    chosen = Release.in_folder(folder, "ab12")
    chosen.choose(tmp_path)
    assert Release.of_home(tmp_path) == chosen
    assert chosen.python == str(folder / ".venv" / "bin" / "python")
    assert chosen.environment() == {"PYTHONPATH": str(folder), "CALLBOARD_GENERATION": "ab12"}
    forget_release(tmp_path)
    assert Release.of_home(tmp_path) == Release.own()


@pytest.mark.parametrize("name", ["a b", "it's", 'say "hi"', "$HOME", "tür", "a;b", "-x y"])
def test_an_environment_with_an_odd_path_is_used_by_a_plain_one(tmp_path: Path, name: str) -> None:
    """Ray splits the commands of its workers at spaces, and a shell reads them."""
    folder = release_in(tmp_path / name)
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    release = Release.in_folder(folder, "ab12").by_plain_path(run_folder)
    assert release.by_plain_path(run_folder) == release
    assert release.folder == str(folder)
    assert Path(release.python).parent.samefile(folder / ".venv" / "bin")
    said = subprocess.run(
        ["sh", "-c", f"{release.python} -c 'import sys; print(sys.executable)'"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.strip() == release.python


def test_an_environment_with_a_plain_path_needs_no_link(tmp_path: Path) -> None:
    release = Release("/opt/call-board_1.0/.venv/bin/python3", "/opt")
    assert release.by_plain_path(tmp_path) is release
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["serve_app", ".venv/bin/python"])
def test_a_release_that_is_gone_is_refused(tmp_path: Path, missing: str) -> None:
    folder = release_in(tmp_path / "newer")
    Release.in_folder(folder, "ab12").choose(tmp_path)
    (folder / missing).rename(folder / "away")
    for ask in (lambda: Release.of_home(tmp_path), lambda: Release.in_folder(folder, "")):
        with pytest.raises(DeploymentError, match=f"no release in {folder}"):
            ask()


@pytest.mark.parametrize("text", ["", "[]", '{"python": "/bin/true"}', '{"a": 1}'])
def test_a_file_that_names_no_release_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(DeploymentError, match="does not name a release"):
        Release.of_home(tmp_path)


def test_an_upgrade_keeps_the_owners_of_a_machine_that_has_joined_meanwhile() -> None:
    settings = Settings(generation="cd34")
    own, joined = (workflow_actor(machine, 0, "cd34") for machine in ("m1", "m2"))
    before, tried = (workflow_actor("m1", 0, generation) for generation in ("", "ab12"))
    gateway: Any = None
    roll = Upgrade(settings, gateway, print)
    lease = Lease(
        is_known=True,
        map_version=1,
        members=tuple(map(member, (own, joined, before, tried))),
        shards=(),
    )
    assert [one.address for one in roll._before(lease)] == [before, tried]


def test_a_machine_that_ray_drains_does_not_keep_an_upgrade_from_beginning() -> None:
    """It leaves: nothing that starts there takes work back, which a person has sent away."""
    lease = Lease(
        is_known=True,
        map_version=1,
        members=(member("a", machine="m1"), member("b", machine="m2", state=MemberState.DRAINING)),
    )
    _check_not_drained(lease, leaving=["m2"])
    with pytest.raises(UpgradeFailed, match="m2 is drained"):
        _check_not_drained(lease, leaving=[])


def test_a_second_upgrade_is_refused_while_one_is_under_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded: Any = SimpleNamespace(
        deployment=SimpleNamespace(home=tmp_path, id="nobody", run_folder=tmp_path)
    )
    with (tmp_path / "upgrade.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert upgrade(loaded, None) == 1
        assert "is being upgraded" in capsys.readouterr().err
    assert upgrade(loaded, None) == 1
    assert "is not up on this machine" in capsys.readouterr().err
