"""`make cluster-demo`: a cluster on hosts made of namespaces, started by the real `ray up`.

1. Hosts: an operator, Postgres, three machines, clean but for Python and sshd.
2. `ray up cluster.yaml` on the operator's host, with addresses and secrets filled in.
3. The demonstration's workflow through the API of each machine; `serve status`.
4. A graph of 1,000 nodes: from which machines its dispatches come.
5. A machine is cut off while workflows run: the others finish them; it comes back (`faults.py`).
6. A fourth machine joins.
7. An upgrade is rolled while workflows run; no publish is refused.
8. `ray down`: what is left on each machine. Then the hosts are removed.

`--faults NAME…` makes these faults in the place of 5, `--faults all` all of them. Prints what it
does with its times; exit status 1 at the first thing that is not as it should be. Where such hosts
cannot be made it prints SKIPPED with the reason and uses three local Ray nodes (`local.py`).
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from scripts.cluster_demo.demo import KEPT, Demo, wheels_folder
from scripts.cluster_demo.faults import Faults
from scripts.cluster_demo.hosts import HostError, Network, why_not
from scripts.cluster_demo.local import run_local


def run(demo: Demo, faults: list[str]) -> None:
    """Run the steps from 2 on.

    Raises:
        HostError: something is not as it should be.
    """
    demo.say("hosts: " + ", ".join(f"{h.name} {h.address}" for h in demo.network.hosts))
    demo.up()
    demo.run_article()
    demo.run_wide(1_000)
    Faults(demo).run(faults)
    demo.add_fourth()
    Faults(demo).run(["upgrade"])
    demo.down()


def keep_logs(network: Network) -> None:
    """Copy every machine's logs to where they outlive it."""
    keep = KEPT / "failed-logs"
    shutil.rmtree(keep, ignore_errors=True)
    for host in network.hosts:
        logs = host.own_files / "logs"
        if logs.exists():
            shutil.copytree(logs, keep / host.name)


def run_on_hosts(faults: list[str]) -> None:
    """Make the hosts, run all steps, remove the hosts.

    Raises:
        HostError: something is not as it should be.
    """
    KEPT.mkdir(exist_ok=True)
    wheels = wheels_folder()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="hosts-", dir=KEPT))
        folder.chmod(0o755)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        network = stack.enter_context(Network(folder))
        try:
            run(Demo(network, wheels), faults)
        except HostError:
            keep_logs(network)
            raise
    print("the hosts are removed", flush=True)


def main() -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(prog="python -m scripts.cluster_demo")
    choices = ["all", *Faults.names()]
    parser.add_argument("--faults", nargs="+", choices=choices, default=["link"], metavar="NAME")
    given = parser.parse_args().faults
    faults = Faults.names() if "all" in given else given
    # Ended by a signal, the hosts are removed on the way out too; a shell that starts this in the
    # background has set SIGINT to be ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: sys.exit(128 + got))
    try:
        if reason := why_not():
            print(f"SKIPPED: {reason}", flush=True)
            run_local()
        else:
            run_on_hosts(faults)
    except HostError as failure:
        print(f"FAILED: {failure}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
