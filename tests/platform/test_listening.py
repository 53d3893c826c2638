"""Every TCP address on which a deployment listens: the API's as told, else loopback or Ray's own.

Method: the kernel names the listening sockets of each process that carries the deployment's mark.
docs/operations.md (Ports).
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from serve_app.supervisor.deployment import deployment_id
from serve_app.supervisor.processes import marked_processes
from tests.platform.deployments import (
    RunningDeployment,
    deployed,
)

# Ray binds these on the machine's address or on all interfaces, and no option changes it: by
# process, the offsets in the deployment's block of ports.
RAYS = {"gcs_server": {0}, "ray::DashboardAgent": {2, 4}}
# Ray's programs take their other ports from the kernel.
FROM_KERNEL = 32_768
BLOCK = 100


def listening(home: Path) -> list[tuple[str, str, int]]:
    """Return the program, the address and the port of each socket that listens."""
    found = []
    for pid in marked_processes(deployment_id(home)):
        process = psutil.Process(pid)
        for one in process.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN:
                found.append((process.name(), one.laddr.ip, one.laddr.port))
    return found


def check(home: Path, host: str, port: int) -> None:
    """Check every socket that listens."""
    sockets = listening(home)
    assert [one for one in sockets if one[2] == port] == [("haproxy", host, port)]
    [first] = [port for name, _, port in sockets if name == "gcs_server" and port < FROM_KERNEL]
    others = [one for one in sockets if one[2] != port]
    assert sum(name == "haproxy" for name, _, _ in others) == 2, "the pages of counters"
    for name, address, used in others:
        is_rays = name in ("raylet", "gcs_server") or name.startswith("ray::")
        if is_rays and (used >= FROM_KERNEL or used - first in RAYS.get(name, ())):
            continue
        assert ip_address(address).is_loopback, (name, address, used)
        assert first <= used < first + BLOCK, (name, address, used)


def test_by_default_only_ray_listens_beyond_loopback(deployment: RunningDeployment) -> None:
    check(deployment.home, "127.0.0.1", int(deployment.url.rpartition(":")[2]))


def test_the_api_listens_where_it_is_told_and_nothing_else_does(
    second_region: RunningDeployment,
) -> None:
    port = int(second_region.url.rpartition(":")[2])
    check(second_region.home, "0.0.0.0", port)
    socket.create_connection(("127.0.0.1", port), timeout=10).close()


@pytest.mark.soak
def test_the_api_listens_on_both_families(short_folder: Path) -> None:
    with deployed(short_folder, 'host = "::"\n') as running:
        check(running.home, "::", int(running.url.rpartition(":")[2]))
