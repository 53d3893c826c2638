"""A deployment's folders and files, its lock file and its ports.

A deployment has two folders. The home has the files that outlive a run: `admin.key`, `postgres/`,
`logs/` and keys. `down` removes only `url` and `gcs/` from the home. The run folder has the files
of one run. Its path is short, because the path of a Unix socket has at most 107 bytes. When the
supervisor ends, even by SIGKILL, the kernel releases the file lock and the reserved ports. This
module starts no process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ledger.embedded.server import write_private

PORTS_FROM, PORTS_TO, BLOCK_SIZE = 12_000, 32_700, 100
# The number of ports at the beginning of a block that have a fixed use. Serve assigns the other
# ports to replicas, and skips a port that is in use.
FIXED_PORTS = 20
LOG_BYTES_MAX = 16 * 1024 * 1024
_RUN_PATH_BYTES_MAX = 32


class DeploymentError(RuntimeError):
    """The deployment cannot do what was requested; the message says what to do."""


class AlreadyRunning(DeploymentError):
    """A supervisor of this deployment is already running."""


def already_running(home: object, process: object) -> str:
    """Return the error message for a deployment that already runs, with the command to end it."""
    return f"{home} is already up (process {process}); end it with: callboard down --home {home}"


def default_home() -> Path:
    """Return the folder of the default deployment."""
    return Path.home() / ".local" / "share" / "callboard" / "default"


def deployment_id(home: Path) -> str:
    """Return eight hex digits that identify a home on this machine by its resolved path."""
    return hashlib.sha256(os.fsencode(os.path.realpath(home))).hexdigest()[:8]


def is_plain(path: str) -> bool:
    """Say whether a path has no character that a shell interprets, such as space, quote or `$`."""
    return re.fullmatch(r"[A-Za-z0-9/._+@-]+", path) is not None


def run_folder_of(home: Path) -> Path:
    """Return the short path of a home's run folder, without creating the folder."""
    base = tempfile.gettempdir()
    is_short = len(os.fsencode(base)) <= _RUN_PATH_BYTES_MAX - len("/callboard-01234567")
    if not (is_short and is_plain(base)):
        base = "/tmp"
    return Path(base) / f"callboard-{deployment_id(home)}"


@dataclass(frozen=True, slots=True)
class Deployment:
    """The paths of one deployment."""

    home: Path
    run_folder: Path

    @property
    def id(self) -> str:
        return deployment_id(self.home)

    @property
    def url_file(self) -> Path:
        return self.home / "url"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def ray_token_file(self) -> Path:
        return self.home / "ray.token"

    @property
    def gcs_folder(self) -> Path:
        """The folder in which the head of a cluster stores Ray's own state."""
        return self.home / "gcs"

    @property
    def deployment_key_file(self) -> Path:
        return self.home / "deployment.key"

    def prepare(self, *, deployment_key: str = "", ray_token: str = "") -> None:
        """Create the folders, and the secrets if they do not exist.

        Args:
            deployment_key: the key from the settings; if it is empty, a key file is created.
            ray_token: the token from the settings; if it is empty, a token is created. It is
                written to a file, which Ray reads.

        Raises:
            DeploymentError: the run folder belongs to another user.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        for log in self.logs.glob("*.log"):
            # The programs that write `*.log` files do not rotate them. Actors rotate their own logs
            # (`*.jsonl`).
            if log.stat().st_size > LOG_BYTES_MAX:
                log.rename(log.with_name(f"{log.name}.1"))
        if not deployment_key and not self.deployment_key_file.exists():
            write_private(self.deployment_key_file, secrets.token_hex(32))
        if ray_token or not self.ray_token_file.exists():
            write_private(self.ray_token_file, ray_token or secrets.token_hex(32))
        self.make_run_folder()

    def make_run_folder(self) -> None:
        """Create the run folder, private to this user."""
        try:
            self.run_folder.mkdir(mode=0o700)
        except FileExistsError:
            # Every user can write to the system's temporary folder. So a folder or a link that
            # another user has created there is refused.
            status = self.run_folder.lstat()
            if status.st_uid != os.geteuid() or self.run_folder.is_symlink():
                raise DeploymentError(
                    f"{self.run_folder} belongs to another user: remove it or use another --home"
                ) from None
            self.run_folder.chmod(0o700)

    def lock(self) -> int:
        """Take the deployment's file lock. The kernel releases it when this process ends.

        Raises:
            AlreadyRunning: another process holds the lock.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        descriptor = take_lock(self.home / "lock")
        if descriptor is None:
            raise AlreadyRunning(already_running(self.home, self.holder()))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return descriptor

    def holder(self) -> int | None:
        """Return the process id of the running supervisor, which holds the file lock; None if no
        process holds it."""
        try:
            descriptor = os.open(self.home / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.pread(descriptor, 20, 0) or b"0") or None
        finally:
            os.close(descriptor)
        return None


def take_lock(file: Path) -> int | None:
    """Lock a file; return its descriptor, or None if another process holds the lock.

    The lock is released when the descriptor is closed or the process ends.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class PortBlock:
    """A block of 100 consecutive ports, reserved on this machine for one deployment.

    The reservation is an abstract Unix socket. It is not a file, all deployments on the machine see
    it, and it disappears when its process ends. All blocks are below the range of ports that the
    kernel assigns.
    """

    def __init__(self, first: int, reservation: socket.socket) -> None:
        self.first = first
        self._reservation = reservation

    @classmethod
    def reserve(cls, seed: str) -> PortBlock:
        """Reserve a free block; the same seed gives the same block if it is free.

        Args:
            seed: hex digits.

        Raises:
            DeploymentError: no block is free.
        """
        blocks = (PORTS_TO - PORTS_FROM) // BLOCK_SIZE
        start = int(seed, 16) % blocks
        for offset in range(blocks):
            first = PORTS_FROM + (start + offset) % blocks * BLOCK_SIZE
            if isinstance(block := cls._take(first, BLOCK_SIZE), PortBlock):
                return block
        raise DeploymentError(
            f"no {BLOCK_SIZE} neighbouring free ports between {PORTS_FROM} and {PORTS_TO}"
        )

    @classmethod
    def reserve_at(cls, first: int) -> PortBlock:
        """Reserve the block that begins at a port.

        In a cluster the block is fixed, because machines connect to each other's ports.

        Args:
            first: the block's first port, 1,024 to 32,700.

        Raises:
            DeploymentError: one of the block's fixed ports is in use.
        """
        # Only the fixed ports must be free. After replicas are killed, the kernel keeps their ports
        # in use for a minute. A restart does not wait for these ports, because Serve skips them.
        block = cls._take(first, FIXED_PORTS)
        if isinstance(block, PortBlock):
            return block
        raise DeploymentError(
            f"port {block} is in use; this machine needs {first} to {first + BLOCK_SIZE - 1}:"
            " choose others with --ports, the same on all machines"
        )

    @classmethod
    def _take(cls, first: int, needed: int) -> PortBlock | int:
        """Return the block that begins at a port, or the first needed port that is in use."""
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            reservation.bind(f"\0callboard-ports-{first}")
        except OSError:
            reservation.close()
            return first
        for port in range(first, first + needed):
            if not is_free(port):
                reservation.close()
                return port
        return cls(first, reservation)

    def close(self) -> None:
        """Release the reservation."""
        self._reservation.close()


def is_free(port: int, host: str = "") -> bool:
    """Say whether a process can listen on a TCP port now.

    Args:
        port: 1 to 65535.
        host: an address of this machine; empty: all IPv4 addresses.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
