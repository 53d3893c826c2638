"""Replaces the deployment's key: `rotate-deployment-key`, as often as it takes.

What is done stands in the key's own file, so it may end anywhere and be begun anew. In order:

1. A new key is accepted by every process, and in use in none.
2. It is in use in every process; the one of before is accepted.
3. Agents' secrets are sealed anew.
4. With `--end`, once they are and nothing else needs the previous key, the new one is the only
   one.

Between the steps every process is replaced, as by `callboard upgrade`, so that none meets what is
made with a key that it does not know. Where the key does not lie in the home's file, on the
machines of a cluster, each step writes what the setting has to be, for people to distribute.
Decision permissions-and-keys.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from core.timestamps import iso_ms
from core.trust.deployment_keys import KEY_BYTES, DeploymentKeys
from ledger.embedded.server import write_private
from ledger.features.sealed_secrets import MadeWithKey, SealedSecrets, made_with_key, seal_anew
from ledger.reads.reader import LedgerReader
from serve_app.settings_from_env import LoadedSettings, load_settings
from serve_app.supervisor.deployment import DeploymentError
from serve_app.supervisor.releases.beginning import running_environment, take_turn, upgrade
from serve_app.supervisor.releases.release import Release

# Of the keys that every process knows: what stands in the file may not be there yet.
_KNOWN: Final = "deployment.key.known"
_NEXT: Final = "deployment.key.next"
_LOCK: Final = "rotation.lock"


def rotate(loaded: LoadedSettings, *, is_end: bool, is_forced: bool) -> int:
    """Go on with the rotation of a deployment's key; return the exit status.

    Args:
        loaded: of the deployment's home.
        is_end: end the key of before, instead of bringing in a new one.
        is_forced: also while something is left that only that key can read.
    """
    try:
        turn = take_turn(loaded.deployment, _LOCK)
        try:
            rotation = _rotation(loaded, lambda line: print(line, flush=True))
            if is_end:
                rotation.end(is_forced=is_forced)
            else:
                rotation.run()
                rotation.seal_anew()
        finally:
            os.close(turn)
    except DeploymentError as refusal:
        print(f"callboard: {refusal}", file=sys.stderr)
        return 1
    return 0


class KeyRotation:
    """The rotation of one deployment's key.

    Args:
        loaded: of its home.
        say: gets a line for people about each thing that happens.
        replace: replaces what runs by processes that read the settings anew, and says whether it
            has; None where nothing runs.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        say: Callable[[str], None],
        replace: Callable[[], bool] | None,
    ) -> None:
        self._loaded = loaded
        self._deployment = loaded.deployment
        self._say = say
        self._replace = replace
        self._keys = loaded.settings.deployment_keys
        if not self._keys.versions:
            raise DeploymentError(
                f"{loaded.settings.home} has no deployment key: the first `callboard up` makes one"
            )

    def run(self) -> None:
        """Bring a new key into use, or go on with that (1 and 2).

        Raises:
            DeploymentError: people have to distribute the keys, or the processes are not replaced.
        """
        if len(self._keys.versions) == 1:
            self._distribute(self._keys)
            self._distribute(self._keys.with_next(secrets.token_bytes(KEY_BYTES)))  # 1
        elif self._keys.version != max(self._keys.versions):
            self._distribute(self._keys)
        self._distribute(self._keys.with_newest_in_use())  # 2
        self._say(f"the key of version {self._keys.version} is in use")

    def seal_anew(self) -> None:
        """Seal agents' secrets by the new key, and say what else needs the previous one (3)."""
        before = min(self._keys.versions)
        if self._replace is None or before == self._keys.version:
            return
        left = asyncio.run(self._left(before))
        end = f"callboard rotate-deployment-key --end ends the key of version {before}"
        self._say(f"{end}, once it is not needed: {_told(left)}" if left else end)

    def end(self, *, is_forced: bool) -> None:
        """End the key of before (4).

        Raises:
            DeploymentError: it is still needed, or as of `run`.
        """
        if len(self._keys.versions) > 1:
            if self._keys.version != max(self._keys.versions):
                raise DeploymentError("the new key is not in use yet: end the rotation first")
            before = min(self._keys.versions)
            if not is_forced:
                if self._replace is None:
                    raise DeploymentError(
                        "the deployment must be up, so that it can tell what needs the previous key"
                    )
                left = asyncio.run(self._left(before))
                if left:
                    raise DeploymentError(
                        f"the key of version {before} is still needed: {_told(left)}; --force"
                        " removes it anyway, and what only it can read is lost"
                    )
            self._distribute(self._keys.with_one())
        self._distribute(self._keys)
        self._say(f"the key of version {self._keys.version} is the only one")

    def _distribute(self, keys: DeploymentKeys) -> None:
        """Let every process have these keys.

        Raises:
            DeploymentError: as of `run`.
        """
        if keys.text() != self._keys.text():
            self._write(keys)
        self._keys = keys
        known = self._deployment.home / _KNOWN
        digest = hashlib.sha256(keys.text().encode()).hexdigest()
        told = known.read_text(encoding="ascii") if known.exists() else ""
        is_first = not told and len(keys.versions) == 1
        if told == digest or is_first:
            return
        if self._replace is not None:
            self._say(f"replacing what runs, for the keys {keys.versions}")
            if not self._replace():
                raise DeploymentError("not everything was replaced: run the same command again")
        write_private(known, digest)
        (self._deployment.home / _NEXT).unlink(missing_ok=True)

    def _write(self, keys: DeploymentKeys) -> None:
        file = self._deployment.deployment_key_file
        is_one_machine = self._loaded.settings.machines_max == 1
        if self._loaded.sources["deployment_key"] != str(file) or not is_one_machine:
            following = self._deployment.home / _NEXT
            if not self._is_proposed(following, keys):  # else people may have taken it already
                write_private(following, keys.text())
            raise DeploymentError(
                f"replace deployment_key by the content of {following} on every machine, the head"
                " last, then run the same command again"
            )
        write_private(file, keys.text())

    def _is_proposed(self, file: Path, keys: DeploymentKeys) -> bool:
        """Say whether a file has these keys, but for one that no process knows yet."""
        try:
            written = DeploymentKeys.parse(file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return False
        return written.versions == keys.versions and all(
            written.key(version) == self._keys.key(version)
            for version in keys.versions
            if version in self._keys.versions
        )

    async def _left(self, version: int) -> MadeWithKey:
        """Seal anew what can be, and return what is left of a version."""
        url = self._loaded.settings.database_url
        store = SealedSecrets(url)
        async with LedgerReader(url, pool_size=1) as reader:
            try:
                while True:
                    left = await made_with_key(reader, store, version)
                    self._say(f"{left.secrets} signing secrets are left to be sealed anew")
                    if not left.secrets or not await seal_anew(reader, store, self._keys):
                        return left
            finally:
                await store.close()


def _rotation(loaded: LoadedSettings, say: Callable[[str], None]) -> KeyRotation:
    deployment = loaded.deployment
    if deployment.holder() is None:
        return KeyRotation(loaded, say, None)
    # What runs may have been told more than this command.
    running = load_settings(environment=running_environment(deployment))
    release = _other_release(deployment.home)
    return KeyRotation(running, say, lambda: upgrade(running, release) == 0)


def _other_release(home: Path) -> Path | None:
    """Return the folder of the release that runs, None where it is this command's own."""
    chosen = Release.of_home(home)
    return None if chosen.folder == Release.own().folder else Path(chosen.folder)


def _told(left: MadeWithKey) -> str:
    parts = []
    if left.secrets:
        parts.append(f"{left.secrets} signing secrets")
    if left.attempts:
        until = "" if left.last_ms is None else f" until {iso_ms(left.last_ms)}"
        parts.append(f"{left.attempts} open attempts{until}")
    if left.has_replies:
        parts.append("replies that are kept under idempotency keys")
    return ", ".join(parts)
