"""Rotates the deployment key: the steps of `callboard rotate-deployment-key`.

The progress is stored in the key file, and in a file with the digest of the keys that all processes
know. So the command can be run again if it stops before its end.

1. All processes accept the new key, and still use the previous key.
2. All processes use the new key, and still accept the previous key.
3. The stored secrets of agents, hooks, webhooks and the deployment are encrypted (sealed) with the
   new key.
4. With `--end`, the previous key is removed, if no data needs it any more.

Steps 1, 2 and 4 replace all processes, as `callboard upgrade` does. So no process receives data
that was made with a key that it does not know. In a cluster, or if the key does not come from the
home's key file, the operator must distribute the key. In this case, each of these steps writes the
new value of the setting to a file, and stops. Decision permissions-and-keys.
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
from serve_app.supervisor.releases.release import Release
from serve_app.supervisor.releases.upgrade_start import running_environment, take_turn, upgrade

# The file with the digest of the keys that all processes know. The key file may be newer.
_KNOWN: Final = "deployment.key.known"
_NEXT: Final = "deployment.key.next"
_LOCK: Final = "rotation.lock"


def rotate(loaded: LoadedSettings, *, is_end: bool, is_forced: bool) -> int:
    """Begin or continue the rotation of a deployment's key; return the exit status.

    Args:
        loaded: the settings of the deployment's home.
        is_end: remove the previous key (step 4), instead of steps 1 to 3.
        is_forced: remove the previous key even if some data can be read only with it.
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
        loaded: the deployment's settings.
        say: prints a line of progress.
        replace: replaces all processes by processes that read the settings again, and returns
            whether that succeeded; None if the deployment does not run.
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
        """Put a new key into use, or continue to do so (steps 1 and 2).

        Raises:
            DeploymentError: the operator must distribute the keys, or the processes were not
                replaced.
        """
        if len(self._keys.versions) == 1:
            self._distribute(self._keys)
            self._distribute(self._keys.with_next(secrets.token_bytes(KEY_BYTES)))  # 1
        elif self._keys.version != max(self._keys.versions):
            self._distribute(self._keys)
        self._distribute(self._keys.with_newest_in_use())  # 2
        self._say(f"the key of version {self._keys.version} is in use")

    def seal_anew(self) -> None:
        """Encrypt stored secrets with the new key (step 3). Print what needs the previous key."""
        before = min(self._keys.versions)
        if self._replace is None or before == self._keys.version:
            return
        left = asyncio.run(self._left(before))
        end = f"callboard rotate-deployment-key --end ends the key of version {before}"
        self._say(f"{end}, once it is not needed: {_told(left)}" if left else end)

    def end(self, *, is_forced: bool) -> None:
        """Remove the previous key (step 4).

        Raises:
            DeploymentError: the previous key is still needed, or see `run`.
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
        """Write these keys to the key file, and replace the processes that do not know them.

        Raises:
            DeploymentError: see `run`.
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
            # An existing proposal is not replaced, because an operator may have distributed it.
            if not self._is_proposed(following, keys):
                write_private(following, keys.text())
            raise DeploymentError(
                f"replace deployment_key by the content of {following} on every machine, the head"
                " last, then run the same command again"
            )
        write_private(file, keys.text())

    def _is_proposed(self, file: Path, keys: DeploymentKeys) -> bool:
        """Return whether a file has these key versions.

        The keys that the processes know must be the same. A new key may differ.
        """
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
        """Encrypt the secrets of a key version again. Return what still needs this version."""
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
    # The settings of the running processes are used. They may differ from those of this command.
    running = load_settings(environment=running_environment(deployment))
    release = _other_release(deployment.home)
    return KeyRotation(running, say, lambda: upgrade(running, release) == 0)


def _other_release(home: Path) -> Path | None:
    """Return the folder of the running release, None if it is the release of this command."""
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
