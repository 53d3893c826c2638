"""Holds every reply of the contract tests against the document that the service gives of itself.

A reply has to be of a path, method, status and media type that the document names; its body has to
satisfy the schema there, without members that it does not name, unless the schema says that it is
open; the code of a refusal has to be listed for its status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
from jsonschema_rs import Draft202012Validator

from serve_app.api import all_operations
from serve_app.http.calls import EVENT_STREAM
from serve_app.openapi.document import openapi_document

Json = dict[str, Any]
PROBLEM = "application/problem+json"
# Of every reply, whatever it is (decision http-edge).
ALWAYS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
# What answers every path, and every method of a path, that the document does not name.
UNDESCRIBED = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


class Described:
    """The document, ready to judge replies.

    Args:
        document: as `/openapi.json` gives it.
    """

    def __init__(self, document: Json) -> None:
        self._document: Json = closed(document)
        self._validators: dict[str, Draft202012Validator] = {}
        self._paths = {path: path.split("/") for path in document["paths"]}

    def path_of(self, url_path: str) -> str | None:
        """Return the path of the document that serves this one, None for none.

        Args:
            url_path: as it was sent, percent signs and doubled first slashes and all.
        """
        parts = ("/" + url_path.lstrip("/")).split("/")
        served = [path for path, segments in self._paths.items() if _serves(segments, parts)]
        return min(served, key=lambda path: path.count("{"), default=None)

    def has(self, method: str, path: str) -> bool:
        """Say whether the document names an operation, its path as the document spells it."""
        return method.lower() in self._document["paths"].get(path, {})

    def defect(self, method: str, url_path: str, status: int, headers: Any, text: str) -> str:
        """Return what the document does not say of a reply; empty when it says all of it."""
        path = self.path_of(url_path)
        described = self._document["paths"].get(path, {}).get(method.lower())
        if described is None:
            code = json.loads(text).get("code")
            is_known = UNDESCRIBED.get(status) == code
            return "" if is_known else f"{status} {code} of a path or method that is not described"
        response = described["responses"].get(str(status))
        if response is None:
            return f"status {status} is not described: {text[:300]}"
        if "content" not in response:
            return f"{status} has a body: {text[:300]}" if text else ""
        media_type = headers["content-type"].partition(";")[0]
        content = response["content"].get(media_type)
        if content is None:
            return f"{media_type} of status {status} is not described"
        if not media_type.endswith("json"):
            return ""
        body = json.loads(text)
        if media_type == PROBLEM and body.get("code") not in content["examples"]:
            return f"{status} {body.get('code')} is not described"
        return self._mismatch(f"{path} {method} {status} {media_type}", content["schema"], body)

    def fits_first(self, method: str, path: str, body: Any) -> bool:
        """Say whether a reply is of the first of the classes that the operation may answer with."""
        described = self._document["paths"].get(path, {}).get(method.lower())
        if described is None:
            return False
        content = described["responses"]["200"]["content"].get("application/json")
        if content is None:
            return False
        schema = content["schema"]
        first = schema["anyOf"][0] if "anyOf" in schema else schema
        return not self._mismatch(f"{path} {method} first", first, body)

    def fits_body(self, method: str, path: str, body: Any) -> bool:
        """Say whether a body is as the operation describes it; one without any is not."""
        described = self._document["paths"].get(path, {}).get(method.lower(), {})
        content = described.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None:
            return False
        return not self._mismatch(f"{path} {method} body", content["schema"], body)

    def _mismatch(self, place: str, schema: Json, body: Any) -> str:
        if place not in self._validators:
            root = {**schema, "components": self._document["components"]}
            self._validators[place] = Draft202012Validator(root)
        errors = self._validators[place].iter_errors(body)
        return "; ".join(f"{_place(error)}: {error.message[:300]}" for error in errors)


def lacking(response: httpx.Response) -> str:
    """Return what a reply's headers lack that every reply has, and every 401; empty for nothing."""
    headers = response.headers
    found = [name for name, value in ALWAYS.items() if headers.get_list(name) != [value]]
    if "default-src 'none'" not in headers.get("content-security-policy", ""):
        found.append("content-security-policy")
    if response.status_code == 401 and not headers.get("www-authenticate", "").startswith("Bearer"):
        found.append("www-authenticate")
    is_readable = [name for name in headers if name.startswith("access-control-")]
    return ", ".join((*found, *is_readable))


def closed(schema: Any) -> Any:
    """Return a schema, or a document of them, whose objects refuse members they do not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    below = {name: closed(value) for name, value in schema.items()}
    is_object = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if is_object and "additionalProperties" not in schema:
        below["additionalProperties"] = False
    return below


def _serves(segments: list[str], parts: list[str]) -> bool:
    return len(segments) == len(parts) and all(
        segment.startswith("{") or segment == unquote(part)
        for segment, part in zip(segments, parts, strict=True)
    )


def _place(error: Any) -> str:
    return "/".join(map(str, error.instance_path)) or "$"


@cache
def described() -> Described:
    """Return the document of this checkout."""
    return Described(openapi_document(all_operations(), "0"))


class Replies:
    """Sees every exchange of the contract tests.

    `kept`: a file that gets every exchange as a line of JSON, to be judged later; None for none.
    """

    kept: Path | None = None

    def check(self, response: httpx.Response) -> None:
        """Refuse a reply that is not as described; an event hook of httpx clients."""
        media_type = response.headers.get("content-type", "")
        is_endless = media_type == EVENT_STREAM
        if not is_endless:
            response.read()
        request = response.request
        url_path = request.url.raw_path.partition(b"?")[0].decode("ascii")
        if self.kept is not None and not is_endless:
            self._keep(self.kept, response)
            return
        defect = lacking(response)
        assert not defect, f"{request.method} {url_path}: {defect}"
        if request.method == "HEAD":
            return
        text = "" if is_endless else response.text
        defect = described().defect(
            request.method, url_path, response.status_code, response.headers, text
        )
        assert not defect, f"{request.method} {url_path}: {defect}"

    def _keep(self, kept: Path, response: httpx.Response) -> None:
        request = response.request
        line: Mapping[str, Any] = {
            "method": request.method,
            "path": request.url.raw_path.decode("ascii"),
            "sent": _sent(request).decode("utf-8", "replace"),
            "status": response.status_code,
            "type": response.headers.get("content-type", ""),
            "body": response.text,
        }
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _sent(request: httpx.Request) -> bytes:
    try:
        return request.content
    except httpx.RequestNotRead:  # it was streamed
        return b""


REPLIES = Replies()
