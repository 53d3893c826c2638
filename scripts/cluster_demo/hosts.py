"""Hosts made of namespaces: each has a network address, processes, a home and an sshd of its own.

A host is one process tree in its own network, mount, PID, IPC and UTS namespaces. Its network
interface is one end of a veth pair; the other is a port of a bridge that lies in a namespace of its
own too, so the machine's own network is never touched. Below a host's folder lie its home, its
temporary folder and what stands in for files of `/etc`; shared memory is a tmpfs of its own.
Everything else, the programs of the system above all, is the machine's.

Linux and root only: `why_not` says what is missing.
"""

from __future__ import annotations

import os
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
    "ip",
    "ss",
    "unshare",
    "nsenter",
    "setpriv",
    "rsync",
    "ssh",
    "sshd",
    "ssh-keygen",
    "curl",
)
_START_TIMEOUT_S = 20.0
_SHARED_MEMORY = "768m"
# A host's first process: it arranges the mounts, then becomes sshd, which also reaps orphans.
_INIT = """\
set -eu
folder=$1 name=$2 user=$3 disk_mib=$4
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o size=64m tmpfs /run
mkdir -p /run/sshd
mount -t tmpfs -o size={shared_memory},mode=1777 tmpfs /dev/shm
for file in passwd group hosts hostname; do mount --bind "$folder/etc/$file" "/etc/$file"; done
mount -t tmpfs -o size=1m tmpfs /home
mkdir "/home/$user"
mount --bind "$folder/home" "/home/$user"
mount --bind "$folder/tmp" /tmp
if [ "$disk_mib" != 0 ]; then
  # What the service writes lies on a small disk of its own; code and environment do not fit there.
  mkdir "$folder/disk"
  mount -t tmpfs -o "size=${disk_mib}m" tmpfs "$folder/disk"
  mkdir -m 1777 "$folder/disk/tmp"
  mkdir -p "$folder/disk/local" "$folder/home/.local"
  chown "$user" "$folder/disk/local" "$folder/home/.local"
  mount --bind "$folder/disk/tmp" /tmp
  mount --bind "$folder/disk/local" "/home/$user/.local"
fi
hostname "$name"
exec /usr/sbin/sshd -D -e -f "$folder/etc/sshd_config"
""".replace("{shared_memory}", _SHARED_MEMORY)
_SSHD_CONFIG = """\
ListenAddress {address}
HostKey {folder}/etc/host_key
AuthorizedKeysFile {folder}/etc/authorized_keys
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
        disk_mib: size of a disk of its own for `~/.local` and `/tmp`; 0: they lie in its folder.
        init: its first process as this machine sees it; 0 while it is not started.
    """

    name: str
    address: str
    folder: Path
    namespace: str
    disk_mib: int = 0
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

    @property
    def is_up(self) -> bool:
        return self._starter is not None and self._starter.poll() is None

    def inside(self, command: str, *, user: str = USER) -> list[str]:
        """Return the command line that runs a shell command on this host.

        Args:
            command: for a login shell.
            user: who runs it there.
        """
        enter = ["nsenter", "--target", str(self.init), "--all", "--"]
        plain = ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG=C.UTF-8"]
        home = f"HOME=/home/{USER}" if user == USER else "HOME=/root"
        change = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        who = change if user == USER else []
        return [*enter, *plain, home, f"USER={user}", *who, "bash", "--login", "-c", command]

    def run(self, command: str, *, user: str = USER, timeout_s: float = 60.0) -> str:
        """Run a shell command on this host and return what it printed.

        Raises:
            HostError: it failed, or ran longer than `timeout_s`.
        """
        try:
            done = subprocess.run(
                self.inside(command, user=user), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=timeout_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            text = (late.stdout or b"").decode("utf-8", "replace")
            raise HostError(f"{self.name}: {command}: not done in {timeout_s} s\n{text}") from None
        text = done.stdout.decode("utf-8", "replace")
        if done.returncode != 0:
            raise HostError(f"{self.name}: {command}: exit status {done.returncode}\n{text}")
        return text

    def start(self) -> None:
        """Start the host's first process, with which all others of it end."""
        script = self.folder / "init.sh"
        script.write_text(_INIT, encoding="ascii")
        with (self.folder / "sshd.log").open("ab") as log:
            self._starter = subprocess.Popen(
                [
                    "ip", "netns", "exec", self.namespace, "unshare", "--mount", "--pid", "--ipc",
                    "--uts", "--fork", "--kill-child", "env", "-i",
                    "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                    "bash", str(script), str(self.folder), self.name, USER, str(self.disk_mib),
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

    def signal_all(self, name: str) -> None:
        """Send a signal to every process of the host's user but the shell that does so.

        Args:
            name: without its prefix, such as KILL, STOP or CONT.
        """
        command = self.inside(f"kill -{name} -1")
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)

    def fill_disk(self) -> None:
        """Leave no byte free on the host's own disk, nor to root.

        Raises:
            HostError: it has no disk of its own, or the disk has not become full.
        """
        if not self.disk_mib:
            raise HostError(f"{self.name} has no disk of its own")
        self.run("cat /dev/zero > /tmp/filler; test $(df --output=avail -k /tmp | tail -1) -le 4")

    def free_disk(self) -> None:
        """Make room on the disk again that `fill_disk` has filled."""
        self.run("rm /tmp/filler")

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
        _run(["ip", "-n", self.namespace, "link", "set", "eth0", "up" if is_up else "down"])


class Network:
    """Hosts on one bridge, and how all of it is removed.

    Args:
        folder: an existing folder for what the hosts have of their own.
        prefix: the first three numbers of the hosts' addresses.
    """

    def __init__(self, folder: Path, prefix: str = "10.77.0") -> None:
        self._folder = folder
        self._prefix = prefix
        # Named by this process: several networks stand side by side.
        self._mark = f"cb{os.getpid()}"
        self._switch = f"{self._mark}-switch"
        self.hosts: list[Host] = []
        self._key = folder / "key"

    def __repr__(self) -> str:
        return f"Network({self._mark!r}, {[host.name for host in self.hosts]})"

    def __enter__(self) -> Network:
        _run(["ip", "netns", "add", self._switch])
        _run(["ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge"])
        _run(["ip", "-n", self._switch, "link", "set", "bridge", "up"])
        _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._key)])
        return self

    def __exit__(self, *_failure: object) -> None:
        self.remove()

    def add_host(self, name: str, *, disk_mib: int = 0) -> Host:
        """Make a host and start it.

        Args:
            name: its host name.
            disk_mib: as of `Host`.
        """
        number = len(self.hosts) + 1
        host = Host(
            name=name,
            address=f"{self._prefix}.{9 + number}",
            folder=self._folder / name,
            namespace=f"{self._mark}-{name}",
            disk_mib=disk_mib,
        )
        self.hosts.append(host)
        self._plug_in(host, number)
        self._furnish(host)
        host.start()
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

    def _plug_in(self, host: Host, number: int) -> None:
        port = f"port{number}"
        _run(["ip", "netns", "add", host.namespace])
        _run(
            ["ip", "-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0",
             "netns", host.namespace]
        )  # fmt: skip
        _run(["ip", "-n", self._switch, "link", "set", port, "master", "bridge", "up"])
        for command in (
            f"addr add {host.address}/24 dev eth0",
            "link set eth0 up",
            "link set lo up",
        ):
            _run(["ip", "-n", host.namespace, *shlex.split(command)])

    def _furnish(self, host: Host) -> None:
        etc = host.folder / "etc"
        for name in ("etc", "home", "tmp"):
            (host.folder / name).mkdir(parents=True)
        (host.folder / "tmp").chmod(0o1777)
        os.chown(host.home, UID, UID)
        account = f"{USER}:x:{UID}:{UID}::/home/{USER}:/bin/bash\n"
        (etc / "passwd").write_text(Path("/etc/passwd").read_text() + account)
        (etc / "group").write_text(Path("/etc/group").read_text() + f"{USER}:x:{UID}:\n")
        (etc / "hostname").write_text(f"{host.name}\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {host.name}\n")
        (etc / "sshd_config").write_text(
            _SSHD_CONFIG.format(address=host.address, folder=host.folder)
        )
        shutil.copy(self._key.with_suffix(".pub"), etc / "authorized_keys")
        _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(etc / "host_key")])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise HostError(f"{shlex.join(command)}: {done.stderr.strip()}")
