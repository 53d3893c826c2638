"""Slashes within the values of a path, which arrive as `%2F`: they part nothing.

A server decodes the path before it is routed; then a node named `a/b` looks like two parts of it.
So each part is decoded by itself, and its own slashes are kept apart until its value is read.
What a path says is checked here for all routes. contract.md section 2 (Ids in paths, Texts).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

from core.records.bounds import text_defect
from serve_app.http.calls import invalid

# Half of a character, so that no decoded text has it.
_SLASH: Final = "\udc2f"


def kept_apart(scope: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return an ASGI scope whose path has a border only where a slash was sent as such."""
    raw_path: bytes = scope.get("raw_path") or b""
    if b"%2F" not in raw_path and b"%2f" not in raw_path:
        return scope
    parts = raw_path.partition(b"?")[0].decode("ascii", "replace").split("/")
    return {**scope, "path": "/".join(unquote(part).replace("/", _SLASH) for part in parts)}


def path_text(scope: Mapping[str, Any]) -> str:
    """Return the decoded path, for people."""
    path: str = scope["path"]
    return path.replace(_SLASH, "/")


def path_values(scope: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the path's values by name, as they were before they were encoded.

    Raises:
        ServiceError: INVALID_REQUEST; the path is not UTF-8, or holds U+0000.
    """
    values: Mapping[str, str] = scope.get("path_params", {})
    if values:
        _check_text(scope.get("raw_path") or b"")
    if _SLASH not in scope["path"]:
        return values
    return {name: value.replace(_SLASH, "/") for name, value in values.items()}


def _check_text(raw_path: bytes) -> None:
    # The server decodes with replacement characters, so the bytes that were sent are looked at.
    if b"%" not in raw_path and raw_path.isascii():
        return
    try:
        defect = text_defect(unquote_to_bytes(raw_path.partition(b"?")[0]).decode())
    except UnicodeDecodeError:
        defect = "bytes that are not UTF-8"
    if defect is not None:
        raise invalid("path", defect, "UTF-8 text without U+0000")
