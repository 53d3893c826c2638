"""Fetch agent: reads a document over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request

from typing_extensions import TypedDict

from callboard import Agent, AgentError

# A reply may have 1 MiB in all, and JSON writes quotes and line ends with two characters.
DOCUMENT_BYTES_MAX = 700_000
FETCH_TIMEOUT_S = 20
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

agent = Agent("did:example:fetch", "Fetch")


class Fetched(TypedDict):
    """A document as it was served."""

    url: str
    contentType: str
    bytes: int
    body: str


@agent.capability("cap.web.fetch.v1", price_cents=1)
def fetch(url: str) -> Fetched:
    """Fetch an article or another document over HTTP."""
    address = urllib.parse.urlsplit(url)
    if address.scheme not in ("http", "https"):
        raise AgentError(f"cannot fetch {url!r}, expected an http or https address", "URL", True)
    # A proxy that the environment names cannot see this machine's loopback.
    proxies = urllib.request.ProxyHandler({} if address.hostname in _LOOPBACK else None)
    request = urllib.request.Request(url, headers={"User-Agent": "callboard-example/1"})
    try:
        opener = urllib.request.build_opener(proxies)
        with opener.open(request, timeout=FETCH_TIMEOUT_S) as response:
            body = response.read(DOCUMENT_BYTES_MAX + 1)
            charset = response.headers.get_content_charset() or "utf-8"
            content_type = response.headers.get_content_type()
    except urllib.error.HTTPError as error:
        raise AgentError(f"{url} answered {error.code}", "STATUS", error.code < 500) from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        said = getattr(reason, "strerror", None) or reason
        raise AgentError(f"cannot reach {url}: {said}", "UNREACHABLE") from error
    if len(body) > DOCUMENT_BYTES_MAX:
        raise AgentError(f"{url} has more than {DOCUMENT_BYTES_MAX} bytes", "TOO_LARGE", True)
    try:
        text = body.decode(charset, errors="replace")
    except LookupError:
        text = body.decode("utf-8", errors="replace")
    return {"url": url, "contentType": content_type, "bytes": len(body), "body": text}


if __name__ == "__main__":
    agent.run(register=False, until_eof=True)
