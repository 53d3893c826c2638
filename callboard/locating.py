"""Where the service is and with which key: by argument, environment, or a deployment's files.

The client and the command line ask the same function. A deployment's key is never sent to another
address than its own. design.md section 6.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from callboard.errors import NO_DEPLOYMENT, Unavailable


@dataclass(frozen=True, slots=True)
class Location:
    """The service's address, and the caller's key if there is one."""

    url: str
    api_key: str | None = field(repr=False)


def default_home() -> Path:
    """Return the folder of the default deployment."""
    return Path.home() / ".local" / "share" / "callboard" / "default"


def locate(url: str | None, api_key: str | None, home: Path | None = None) -> Location:
    """Find the service.

    1. A given address. 2. `CALLBOARD_URL`, unless a folder is given. 3. The files `url` and
    `admin.key` of the folder, which is the default deployment's if none is given.

    Args:
        url: the service's address, None to look it up.
        api_key: the caller's key, None for `CALLBOARD_API_KEY`, else the deployment's key file.
        home: the folder of a local deployment.

    Raises:
        Unavailable: code NO_DEPLOYMENT, no deployment is running there.
    """
    environment_key = os.environ.get("CALLBOARD_API_KEY") or None
    environment_url = os.environ.get("CALLBOARD_URL") or None
    if url is not None:
        return Location(url, api_key or environment_key)
    if home is None and environment_url is not None:
        return Location(environment_url, api_key or environment_key)
    folder = home or default_home()
    key = api_key or (environment_key if home is None else None)
    try:
        found = (folder / "url").read_text().strip()
        return Location(found, key or (folder / "admin.key").read_text().strip())
    except OSError as error:
        raise Unavailable(
            NO_DEPLOYMENT,
            0,
            f"no deployment is running in {folder} ({error.strerror}: {error.filename}); "
            "start one with `callboard up`, or set CALLBOARD_URL and CALLBOARD_API_KEY",
        ) from error
