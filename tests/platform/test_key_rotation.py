"""The rotation of a deployment's key: what processes know at each step, wherever it ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from core.trust.deployment_keys import DeploymentKeys
from serve_app.settings_from_env import load_settings
from serve_app.supervisor.deployment import DeploymentError
from serve_app.supervisor.releases.key_rotation import KeyRotation, rotate
from serve_app.supervisor.releases.upgrade_start import take_turn

FIRST = "ab" * 32
Versions = tuple[int, ...]


class Running:
    """Processes that have read the key's file when they were started, or replaced last.

    Args:
        home: the deployment's.
        ends_at: with which replacement the command is killed, before it has begun; 0: never.
    """

    def __init__(self, home: Path, ends_at: int = 0) -> None:
        self.home = home
        self.known: list[DeploymentKeys] = [keys_in(home)]
        self._ends_at = ends_at

    def replace(self) -> bool:
        """Replace the processes, one after the other."""
        self._ends_at -= 1
        if self._ends_at == 0:
            raise KeyboardInterrupt
        self.known.append(keys_in(self.home))
        return True

    @property
    def versions(self) -> list[Versions]:
        """What was accepted in turn, the version in use first."""
        return [keys.versions for keys in self.known]


def keys_in(home: Path) -> DeploymentKeys:
    return load_settings({"home": str(home)}, {}).settings.deployment_keys


def rotation(home: Path, replace: Callable[[], bool] | None) -> KeyRotation:
    return KeyRotation(load_settings({"home": str(home)}, {}), lambda line: None, replace)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose key was made by its first start."""
    (tmp_path / "deployment.key").write_text(FIRST, encoding="ascii")
    return tmp_path


def test_processes_are_replaced_for_each_step(home: Path) -> None:
    running = Running(home)
    rotation(home, running.replace).run()
    assert running.versions == [(1,), (1, 2), (2, 1)]
    rotation(home, running.replace).run()
    assert len(running.known) == 3, "said again, nothing is left to do"
    rotation(home, running.replace).end(is_forced=True)
    assert running.versions[3:] == [(2,)]
    assert (home / "deployment.key").stat().st_mode & 0o077 == 0
    rotation(home, running.replace).run()
    assert running.versions[4:] == [(2, 3), (3, 2)]
    keys = {keys.key(version) for keys in running.known for version in keys.versions}
    assert len(keys) == 3


@pytest.mark.parametrize("ends_at", [1, 2, 3])
def test_a_rotation_that_is_killed_goes_on(home: Path, ends_at: int) -> None:
    """Processes that run side by side know what the others make, and no key is made twice."""
    running = Running(home, ends_at)
    steps = [KeyRotation.run, partial(KeyRotation.end, is_forced=True)]
    while steps:
        try:
            steps[0](rotation(home, running.replace))
        except KeyboardInterrupt:
            continue  # the same command again
        del steps[0]
    assert running.versions == [(1,), (1, 2), (2, 1), (2,)]
    for before, after in zip(running.known, running.known[1:], strict=False):
        assert before.version in after.versions
        assert after.version in before.versions


def test_where_nothing_runs_the_file_is_enough(home: Path) -> None:
    loaded = load_settings({"home": str(home)}, {})
    assert rotate(loaded, is_end=False, is_forced=False) == 0
    assert keys_in(home).versions == (2, 1)
    assert keys_in(home).key(1) == bytes.fromhex(FIRST)
    assert rotate(load_settings({"home": str(home)}, {}), is_end=True, is_forced=False) == 1
    assert rotate(load_settings({"home": str(home)}, {}), is_end=True, is_forced=True) == 0
    assert keys_in(home).versions == (2,)


def test_where_people_distribute_the_key_each_step_is_written_for_them(tmp_path: Path) -> None:
    file, following = tmp_path / "callboard.toml", tmp_path / "deployment.key.next"
    file.write_text(f'deployment_key = "{FIRST}"\n', encoding="ascii")
    running = Running(tmp_path)
    for _ in range(2):
        with pytest.raises(DeploymentError, match=r"deployment\.key\.next"):
            rotation(tmp_path, running.replace).run()
        assert following.stat().st_mode & 0o077 == 0
        text = following.read_text(encoding="ascii")
        with pytest.raises(DeploymentError, match=r"deployment\.key\.next"):
            rotation(tmp_path, running.replace).run()
        assert following.read_text(encoding="ascii") == text, "some machines may have it already"
        file.write_text(f'deployment_key = "{following.read_text()}"\n', encoding="ascii")
    rotation(tmp_path, running.replace).run()
    assert running.versions == [(1,), (1, 2), (2, 1)]


def test_two_rotations_at_once_are_refused(home: Path) -> None:
    loaded = load_settings({"home": str(home)}, {})
    take_turn(loaded.deployment, "rotation.lock")
    assert rotate(loaded, is_end=False, is_forced=False) == 1
    assert keys_in(home).versions == (1,)


def test_a_home_without_a_key_has_nothing_to_rotate(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="callboard up"):
        rotation(tmp_path, None)
