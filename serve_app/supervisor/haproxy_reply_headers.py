"""HAProxy lines that add headers to every reply: security headers, and CORS headers if enabled.

HAProxy adds them to the replies of replicas, of Serve and of HAProxy itself. A reply that already
has a content security policy keeps it (`serve_app/openapi/docs_page.py`). Web pages of other
origins may read replies only if `cors_origins` names their origin. The service uses no cookies, so
`access-control-allow-credentials` is never sent. Decision http-edge.
"""

from __future__ import annotations

from typing import Final

from core.settings import ANY_ORIGIN, Settings

_NO_CONTENT_RUNS: Final = "default-src 'none'; frame-ancestors 'none'"
_POLICY: Final = "content-security-policy"
_YEAR_S: Final = 31_536_000
# How long a browser may cache the reply to a preflight request, in seconds.
_PREFLIGHT_KEPT_S: Final = 600
_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_SENT: Final = (
    "authorization, content-digest, content-type, idempotency-key, last-event-id, prefer,"
    " signature, signature-input, traceparent, x-api-key, x-callboard-reason, x-request-id"
)
_READ: Final = (
    "idempotency-replayed, ratelimit, ratelimit-policy, retry-after, www-authenticate,"
    " x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, x-request-id"
)
_ORIGIN: Final = "txn.cors_origin"


def security_headers(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the names, in lower case, and the values of the security headers of every reply."""
    headers = (
        ("cache-control", "no-store"),
        (_POLICY, _NO_CONTENT_RUNS),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
    )
    if settings.public_url.startswith("https://"):
        return (*headers, ("strict-transport-security", f"max-age={_YEAR_S}"))
    return headers


def reply_lines(settings: Settings) -> list[str]:
    """Return the lines that add the headers; they must precede every line that sends a reply."""
    lines = [
        f'    http-after-response set-header {name} "{value}"'
        + (f" unless {{ res.hdr({name}) -m found }}" if name == _POLICY else "")
        for name, value in security_headers(settings)
    ]
    if not settings.cors_origins:
        return lines
    if settings.cors_origins == (ANY_ORIGIN,):
        known = f"str({ANY_ORIGIN}) if {{ req.fhdr(origin) -m found }}"
    else:
        listed = " ".join(settings.cors_origins)
        known = f"req.fhdr(origin) if {{ req.fhdr(origin) -m str {listed} }}"
    is_known = f"{{ var({_ORIGIN}) -m found }}"
    return [
        *lines,
        f"    http-request set-var({_ORIGIN}) {known}",
        f"    http-after-response set-header access-control-allow-origin %[var({_ORIGIN})]"
        f" if {is_known}",
        f'    http-after-response set-header access-control-expose-headers "{_READ}" if {is_known}',
        "    http-after-response add-header vary origin",
    ]


def preflight_lines(settings: Settings) -> list[str]:
    """Return the lines that answer preflight requests of the origins in `cors_origins`.

    Preflight requests of other origins go to the replicas, which reply 405 to OPTIONS.
    """
    if not settings.cors_origins:
        return []
    return [
        "    http-request return status 200 content-type application/json"
        f' hdr access-control-allow-methods "{_METHODS}" hdr access-control-allow-headers "{_SENT}"'
        f' hdr access-control-max-age {_PREFLIGHT_KEPT_S} string "{{}}"'
        f" if {{ method OPTIONS }} {{ var({_ORIGIN}) -m found }}"
        " { req.hdr(access-control-request-method) -m found }",
    ]
