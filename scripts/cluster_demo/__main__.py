"""`make cluster-demo`: a cluster on hosts made of namespaces, started by the real `ray up`.

1. Hosts: an operator, Postgres, three machines, clean but for Python and sshd.
2. `ray up cluster.yaml` on the operator's host, with addresses and secrets filled in.
3. `serve deploy serve.yaml`, by `ray exec`.
4. A graph of 1,000 nodes: from which machines its dispatches come.
5. Faults while workflows run (`faults.py`), by default a machine that is cut off.
6. An upgrade is rolled while workflows run; no publish is refused.
7. `ray down`: what is left on each machine. Then the hosts are removed.

`--faults NAME…` makes these faults in 5, `--faults all` all of them. `--smoke`, which is `make
cluster-smoke`, leaves 6 out, with 200 nodes in 4 and a worker that is killed in 5. Prints what it
does with its times; exit status 1 at the first wrong result, after the last lines of the logs.
Where such hosts cannot be made it prints SKIPPED with the reason, and in continuous integration
(`CI=true`) it fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from scripts.cluster_demo.demo import KEPT, ROOT, Demo, shared_folder
from scripts.cluster_demo.faults import CHAIN_NODES, Faults
from scripts.cluster_demo.hosts import HostError, Network, why_not

# Of a chain, of which one takes 0.8 s: enough for a machine to be lost and replaced meanwhile.
SMOKE_CHAIN_NODES = 25
_TOLD_LINES = 10


def run(demo: Demo, faults: list[str], *, is_smoke: bool) -> None:
    """Run the steps from 2 on.

    Raises:
        HostError: a result is wrong.
    """
    demo.up()
    demo.check_listening()
    demo.deploy_again()
    demo.run_wide(200 if is_smoke else 1_000)
    made = Faults(demo, chain_nodes=SMOKE_CHAIN_NODES if is_smoke else CHAIN_NODES)
    made.check_books()
    made.run(faults)
    if not is_smoke:
        made.run(["upgrade"])
    demo.down()


def tell_logs(network: Network) -> None:
    """Copy every machine's logs to where they outlive it, and print their last lines."""
    keep = KEPT / "failed-logs"
    shutil.rmtree(keep, ignore_errors=True)
    for host in network.hosts:
        logs = host.own_files / "logs"
        if not logs.exists():
            continue
        shutil.copytree(logs, keep / host.name, ignore_dangling_symlinks=True)
        for file in sorted(path for path in (keep / host.name).iterdir() if path.is_file()):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            print(f"--- {host.name}: {file.name}", *lines[-_TOLD_LINES:], sep="\n", flush=True)


def run_on_hosts(steps: Callable[[Demo], None]) -> None:
    """Make the hosts, run the steps, remove the hosts.

    Raises:
        HostError: something is not as it should be.
    """
    KEPT.mkdir(exist_ok=True)
    shared = shared_folder()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="hosts-", dir=KEPT))
        folder.chmod(0o755)
        # Three environments are 100,000 files, for which `rmtree` takes a minute.
        stack.callback(subprocess.run, ["rm", "-rf", str(folder)])
        network = stack.enter_context(Network(folder, shared=shared, checkout=ROOT))
        try:
            demo = Demo(network)
            demo.say("hosts: " + ", ".join(f"{one.name} {one.address}" for one in network.hosts))
            steps(demo)
        except BaseException as failure:
            print(f"FAILED: {failure}", flush=True)
            tell_logs(network)
            raise
    if left := [*network.namespaces(), *folder.parent.glob(folder.name)]:
        raise HostError(f"left over: {left}")
    print("the hosts are removed, with their folders and namespaces", flush=True)


def main() -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(prog="python -m scripts.cluster_demo")
    choices = ["all", *Faults.names()]
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--faults", nargs="+", choices=choices, default=["link"], metavar="NAME")
    given = parser.parse_args()
    faults = Faults.names() if "all" in given.faults else given.faults
    if given.smoke:
        faults = ["kill"]
    os.umask(0o022)  # the users of the hosts read what root writes here
    # Ended by a signal, the hosts are removed on the way out too; a shell that starts this in the
    # background has set SIGINT to be ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: sys.exit(128 + got))
    try:
        if reason := why_not():
            print(f"SKIPPED: {reason}", flush=True)
            return 1 if os.environ.get("CI") == "true" else 0
        run_on_hosts(lambda demo: run(demo, faults, is_smoke=given.smoke))
    except (HostError, OSError, subprocess.SubprocessError) as failure:
        print(f"FAILED: {failure}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
