"""Checks whether the API at an address is healthy, and says what is missing."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable

_PAUSE_S = 0.1
_PROGRESS_S = 5.0
_REPLY_TIMEOUT_S = 5.0


def missing_at(url: str) -> str | None:
    """Return what is not healthy at an address, None if everything is healthy.

    Args:
        url: the API's address, without a path.
    """
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=_REPLY_TIMEOUT_S) as reply:
            reply.read()
            return None
    except urllib.error.HTTPError as error:
        body = error.read()
        try:
            components = json.loads(body)["components"]
        except (ValueError, KeyError, TypeError):
            return f"/health answers {error.code}"
        return ", ".join(f"{name} {state}" for name, state in components.items())
    except (OSError, ValueError) as error:
        return f"nothing answers at {url} ({type(error).__name__})"


def wait_api(
    url: str, timeout_s: float, say: Callable[[str], None] = lambda _line: None
) -> str | None:
    """Wait until the API is healthy, and return None. After the timeout, return what is missing.

    Args:
        url: the API's address, without a path.
        timeout_s: the longest wait in seconds; the last request may take 5 s more.
        say: prints every 5 s what is missing.
    """
    said_at = time.monotonic()
    deadline = said_at + timeout_s
    while (missing := missing_at(url)) and time.monotonic() < deadline:
        if time.monotonic() - said_at > _PROGRESS_S:
            said_at = time.monotonic()
            say(f"waiting: {missing}")
        time.sleep(_PAUSE_S)
    return missing
