"""Hosts made of namespaces: each has a network address, processes, a home and an sshd of its own.

A host is one process tree in its own network, mount, PID, IPC and UTS namespaces. Its network
interface is one end of a veth pair; the other is a port of a bridge that lies in a namespace of its
own too, so the machine's own network is never touched. Below a host's folder lie its home, its
temporary folder and what stands in for files of `/etc`; shared memory is a tmpfs of its own.
Everything else, the programs of the system above all, is the machine's. A host sees its folder as
`/run/host`, and what it shares with the others as `/run/shared`, also where the folders above them
admit root alone.

Linux and root only: `why_not` says what is missing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

USER = "callboard"
UID = 3_000
PROGRAMS = (
    "ip", "ss", "unshare", "nsenter", "setpriv", "rsync", "ssh", "sshd", "ssh-keygen", "curl", "ps",
    "pgrep",
)  # fmt: skip
# Where each host sees the folder that all share.
SHARED = "/run/shared"
_START_TIMEOUT_S = 20.0
_SHARED_MEMORY = "768m"
# A host's first process: it arranges the mounts, then becomes sshd, which also reaps orphans.
_INIT = """\
set -eu
shared=$1 checkout=$2 folder=$3 name=$4 user=$5
mount --make-rprivate /
mount -t proc proc /proc
# Bound before anything is mounted over the folders that they lie in.
mount -t tmpfs -o size=64m tmpfs /mnt
mkdir /mnt/host /mnt/shared /mnt/checkout
mount --bind "$folder" /mnt/host
mount --bind "$shared" /mnt/shared
mount --bind "$checkout" /mnt/checkout
mount -t tmpfs -o size=64m tmpfs /run
mkdir -p /run/sshd /run/host /run/shared
mount --move /mnt/host /run/host
mount --move /mnt/shared /run/shared
folder=/run/host
mount -t tmpfs -o size={shared_memory},mode=1777 tmpfs /dev/shm
# A mount over a file of the machine ends when somebody replaces that file, as `useradd` does.
cp --archive /etc /run/etc
for file in passwd group hosts hostname; do cp "$folder/etc/$file" "/run/etc/$file"; done
mount --bind /run/etc /etc
mount -t tmpfs -o size=1m tmpfs /home
mkdir "/home/$user"
mount --bind "$folder/home" "/home/$user"
mount --bind "$folder/tmp" /tmp
mkdir -p "$checkout"
mount --move /mnt/checkout "$checkout"
hostname "$name"
exec /usr/sbin/sshd -D -e -f "$folder/etc/sshd_config"
""".replace("{shared_memory}", _SHARED_MEMORY)
_SSHD_CONFIG = """\
ListenAddress {address}
HostKey /run/host/etc/host_key
AuthorizedKeysFile /run/host/etc/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
Subsystem sftp internal-sftp
MaxStartups 100
MaxSessions 100
"""


class HostError(RuntimeError):
    """A host could not be made, or a command on it failed; the text has its last lines."""


def why_not() -> str | None:
    """Return why this machine cannot make such hosts, None if it can."""
    if os.geteuid() != 0:
        return "making namespaces needs root"
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=search) is None]
    if missing:
        return f"these programs are missing: {', '.join(missing)}"
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "true"],
        capture_output=True, text=True,
    )  # fmt: skip
    if probe.returncode != 0:
        return f"namespaces are not allowed here: {probe.stderr.strip()}"
    return None


@dataclass(slots=True)
class Host:
    """One host of a network.

    Attributes:
        name: its host name.
        address: its IPv4 address.
        folder: what it has of its own.
        namespace: the name of its network namespace.
        user_id: whose its commands are; `/home/callboard` is the home of any.
        init: its first process as this machine sees it; 0 while it is not started.
    """

    name: str
    address: str
    folder: Path
    namespace: str
    user_id: int = UID
    init: int = 0
    _starter: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def home(self) -> Path:
        """Return the folder that is `/home/callboard` on the host."""
        return self.folder / "home"

    @property
    def own_files(self) -> Path:
        """Return the service's folder on the host, as this machine reaches it while it is up."""
        return Path(f"/proc/{self.init}/root/home/{USER}/.local/share/callboard/default")

    def inside(self, command: str) -> list[str]:
        """Return the command line that runs a shell command on this host.

        Args:
            command: for a login shell.
        """
        enter = ["nsenter", "--target", str(self.init), "--all", "--"]
        plain = ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG=C.UTF-8"]
        who = ["setpriv", f"--reuid={self.user_id}", f"--regid={self.user_id}", "--clear-groups"]
        names = [f"HOME=/home/{USER}", f"USER={USER}"]
        return [*enter, *plain, *names, *who, "bash", "--login", "-c", command]

    def run(self, command: str, *, timeout_s: float = 60.0) -> str:
        """Run a shell command on this host and return what it printed.

        Raises:
            HostError: it failed, or ran longer than `timeout_s`.
        """
        try:
            done = subprocess.run(
                self.inside(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=timeout_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            text = (late.stdout or b"").decode("utf-8", "replace")
            raise HostError(f"{self.name}: {command}: not done in {timeout_s} s\n{text}") from None
        text = done.stdout.decode("utf-8", "replace")
        if done.returncode != 0:
            raise HostError(f"{self.name}: {command}: exit status {done.returncode}\n{text}")
        return text

    def start(self, shared: Path, checkout: Path) -> None:
        """Start the host's first process, with which all others of it end.

        Args:
            shared, checkout: as of `Network`.
        """
        script = self.folder / "init.sh"
        script.write_text(_INIT, encoding="ascii")
        with (self.folder / "sshd.log").open("ab") as log:
            self._starter = subprocess.Popen(
                [
                    "ip", "netns", "exec", self.namespace, "unshare", "--mount", "--pid", "--ipc",
                    "--uts", "--fork", "--kill-child", "env", "-i",
                    "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                    "bash", str(script), str(shared), str(checkout), str(self.folder), self.name,
                    USER,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._is_listening():
            if self._starter.poll() is not None or time.monotonic() > deadline:
                raise HostError(f"{self.name}: {(self.folder / 'sshd.log').read_text()[-2_000:]}")
            time.sleep(0.05)
        # Of `unshare`, which waits for it: the first process of the PID namespace.
        children = Path(f"/proc/{self._starter.pid}/task/{self._starter.pid}/children")
        self.init = int(children.read_text().split()[0])

    def _is_listening(self) -> bool:
        probe = ["ip", "netns", "exec", self.namespace, "ss", "-Hltn", "sport", "=", ":22"]
        return bool(subprocess.run(probe, capture_output=True).stdout.strip())

    def listening(self) -> list[tuple[str, str, int]]:
        """Return the program, the address and the port of each TCP socket that listens."""
        command = ["nsenter", "--target", str(self.init), "--all", "--", "ss", "-Hltnp"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = []
        for line in lines.splitlines():
            address, _, port = line.split()[3].rpartition(":")
            found.append((line.split('"')[1], address, int(port)))
        return found

    def signal_all(self, name: str) -> None:
        """Send a signal to every process of the host's user but the shell that does so.

        Args:
            name: without its prefix, such as KILL, STOP or CONT.
        """
        command = self.inside(f"kill -{name} -1")
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)

    def power_off(self) -> None:
        """End every process of the host at once, as a power cut does."""
        if self._starter is None:
            return
        if self.init:
            try:
                os.kill(self.init, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._starter.kill()
        self._starter.wait()
        self._starter, self.init = None, 0

    def set_link(self, *, is_up: bool) -> None:
        """Plug the host's network cable in, or pull it out."""
        run(["ip", "-n", self.namespace, "link", "set", "eth0", "up" if is_up else "down"])


class Network:
    """Hosts on one bridge, and how all of it is removed.

    Args:
        folder: an existing folder for what the hosts have of their own.
        shared: a folder that each host sees as `SHARED`.
        checkout: a folder that each host sees at its own path.
        prefix: the first three numbers of the hosts' addresses.
    """

    def __init__(
        self, folder: Path, *, shared: Path, checkout: Path, prefix: str = "10.77.0"
    ) -> None:
        self._folder = folder
        self._shared = shared
        self._checkout = checkout
        self._prefix = prefix
        # Named by this process: several networks stand side by side.
        self._mark = f"cb{os.getpid()}"
        self._switch = f"{self._mark}-switch"
        self.hosts: list[Host] = []
        self._key = folder / "key"

    def __enter__(self) -> Network:
        run(["ip", "netns", "add", self._switch])
        run(["ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge"])
        run(["ip", "-n", self._switch, "link", "set", "bridge", "up"])
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._key)])
        return self

    def __exit__(self, *_failure: object) -> None:
        self.remove()

    def add_host(self, name: str, *, user_id: int = UID) -> Host:
        """Make a host and start it.

        Args:
            name: its host name.
            user_id: as of `Host`.
        """
        number = len(self.hosts) + 1
        host = Host(
            name=name,
            address=f"{self._prefix}.{9 + number}",
            folder=self._folder / name,
            namespace=f"{self._mark}-{name}",
            user_id=user_id,
        )
        self.hosts.append(host)
        self._plug_in(host, number)
        self._furnish(host)
        host.start(self._shared, self._checkout)
        return host

    def give_key(self, host: Host) -> None:
        """Put the private key that every host admits where an operator keeps it."""
        folder = host.home / ".ssh"
        folder.mkdir(mode=0o700)
        target = folder / USER
        shutil.copy(self._key, target)
        target.chmod(0o600)
        for path in (folder, target):
            os.chown(path, UID, UID)

    def remove(self) -> None:
        """End all hosts and remove their interfaces; returns when nothing of them is left."""
        for host in self.hosts:
            host.power_off()
        for name in (*(host.namespace for host in self.hosts), self._switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def namespaces(self) -> list[str]:
        """Return the names of the network namespaces that are left of it."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        names = [line.split()[0] for line in listed.stdout.splitlines() if line]
        return [name for name in names if name.startswith(f"{self._mark}-")]

    def _plug_in(self, host: Host, number: int) -> None:
        port = f"port{number}"
        run(["ip", "netns", "add", host.namespace])
        run(
            ["ip", "-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0",
             "netns", host.namespace]
        )  # fmt: skip
        run(["ip", "-n", self._switch, "link", "set", port, "master", "bridge", "up"])
        for command in (
            f"addr add {host.address}/24 dev eth0",
            "link set eth0 up",
            "link set lo up",
        ):
            run(["ip", "-n", host.namespace, *shlex.split(command)])

    def _furnish(self, host: Host) -> None:
        etc = host.folder / "etc"
        for name in ("etc", "home", "tmp"):
            (host.folder / name).mkdir(parents=True)
        (host.folder / "tmp").chmod(0o1777)
        os.chown(host.home, UID, UID)
        account = f"{USER}:x:{UID}:{UID}::/home/{USER}:/bin/bash\n"
        # Programs such as ssh look for a user's home there, not in HOME.
        users = re.sub(
            rf"(?m)^((?:[^:]*:){{2}}{host.user_id}:[^:]*:[^:]*:)[^:]*", rf"\g<1>/home/{USER}",
            Path("/etc/passwd").read_text(),
        )  # fmt: skip
        (etc / "passwd").write_text(users + account)
        (etc / "group").write_text(Path("/etc/group").read_text() + f"{USER}:x:{UID}:\n")
        (etc / "hostname").write_text(f"{host.name}\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {host.name}\n")
        (etc / "sshd_config").write_text(_SSHD_CONFIG.format(address=host.address))
        shutil.copy(self._key.with_suffix(".pub"), etc / "authorized_keys")
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(etc / "host_key")])


def run(command: Sequence[str], *, timeout_s: float = 60.0) -> None:
    """Run a command of this machine.

    Raises:
        HostError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise HostError(f"{shlex.join(command)}: {done.stdout}{done.stderr}")
