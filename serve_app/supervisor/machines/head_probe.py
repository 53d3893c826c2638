"""Asks a cluster's head for its versions: `python -m …machines.head_probe ADDRESS`.

Prints a JSON object and ends with 0, else one line with the reason and 1. A program of its own:
the supervisor does not load Ray. It takes part in nothing: a machine that is refused leaves no
trace at the head.
"""

from __future__ import annotations

import json
import sys

from ray._raylet import GcsClient  # type: ignore[attr-defined]  # of a compiled module
from ray.exceptions import AuthenticationError, RpcError

# Where Ray keeps the versions that it compares itself when a node starts, and where
# `serve_app.supervisor.deploy` publishes ours.
RAYS_KEY, RAYS_SPACE = b"CLUSTER_METADATA", b"cluster"
OUR_KEY, OUR_SPACE = b"facts", b"callboard"
_TIMEOUT_S = 10


def main() -> int:
    """Print the head's facts."""
    try:
        # Ray has no public way to ask without joining; its own `ray start` asks like this.
        client = GcsClient(address=sys.argv[1])
        rays = client.internal_kv_get(RAYS_KEY, RAYS_SPACE, timeout=_TIMEOUT_S)
        ours = client.internal_kv_get(OUR_KEY, OUR_SPACE, timeout=_TIMEOUT_S)
    except AuthenticationError:
        print("ray_token is not the head's")
        return 1
    except RpcError as error:
        print(f"Ray does not answer there ({str(error).splitlines()[0]})")
        return 1
    versions = json.loads(rays or b"{}")
    found = {"ray": versions.get("ray_version"), "python": versions.get("python_version")}
    found |= json.loads(ours or b"{}")
    print(json.dumps({name: value for name, value in found.items() if value}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
