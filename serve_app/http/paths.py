"""The values of a path as they were before they were encoded: slashes, DIDs, texts.

A server decodes the path before it is routed; then a node named `a/b` looks like two parts of it.
So each part is decoded by itself, and its own slashes are kept apart until its value is read.
What bytes a path holds is checked here for all routes, what its values are by the class that the
operation declares (`core/records/api/path_values.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

from core.errors import Problem
from core.records.api.shape import json_name
from core.records.bounds import text_defect

# Half of a character, so that no decoded text has it.
_SLASH: Final = "\udc2f"
HOOK_PATH: Final = "/v1/hooks/"
# The token of a hook, which is a credential.
_TOKEN: Final = re.compile(rf"({HOOK_PATH})[^/]+")


def routed(scope: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return an ASGI scope with the path that is routed.

    It has a border only where a slash was sent as such, and begins with one slash: clients join an
    address that ends in one with a path that begins with one.
    """
    raw_path: bytes = scope.get("raw_path") or b""
    if b"%2F" in raw_path or b"%2f" in raw_path:
        parts = raw_path.partition(b"?")[0].decode("ascii", "replace").split("/")
        path = "/".join(unquote(part).replace("/", _SLASH) for part in parts)
        scope = {**scope, "path": path}
    if scope.get("path", "").startswith("//"):  # what is no request has none
        scope = {**scope, "path": "/" + scope["path"].lstrip("/")}
    return scope


def path_text(scope: Mapping[str, Any]) -> str:
    """Return the decoded path, for people, without the token of a hook."""
    path: str = scope["path"]
    return _TOKEN.sub(r"\1…", path.replace(_SLASH, "/"))


def path_values(scope: Mapping[str, Any], template: str) -> Mapping[str, str]:
    """Return the path's values by their JSON names, as they were before they were encoded.

    Args:
        scope: ASGI's, routed.
        template: the operation's path.
    """
    values: Mapping[str, str] = scope.get("path_params", {})
    if not values:
        return values
    found = {json_name(name): value for name, value in values.items()}
    if _SLASH in scope["path"]:
        found = {name: value.replace(_SLASH, "/") for name, value in found.items()}
    if "did" in found:
        found["did"] = _did(found["did"], scope.get("raw_path") or b"", template)
    return found


def _did(decoded: str, raw_path: bytes, template: str) -> str:
    """Return the DID in a path, sent raw or percent-encoded, as its owner writes it.

    A DID may itself hold percent signs (did:web): one that was sent raw, its colons show it, keeps
    them.
    """
    # Counted from the end: a path may begin with more slashes than one.
    place = template.split("/").index("{did}") - template.count("/") - 1
    sent = raw_path.partition(b"?")[0].split(b"/")[place].decode("ascii", "replace")
    return sent if sent.startswith("did:") and "%25" not in sent else decoded


def path_problem(raw_path: bytes) -> Problem | None:
    """Return what is wrong with a path's text: it is not UTF-8, or holds U+0000."""
    # The server decodes with replacement characters, so the bytes that were sent are looked at.
    if b"%" not in raw_path and raw_path.isascii():
        return None
    try:
        defect = text_defect(unquote_to_bytes(raw_path.partition(b"?")[0]).decode())
    except UnicodeDecodeError:
        defect = "bytes that are not UTF-8"
    return None if defect is None else Problem("path", defect, "UTF-8 text without U+0000")
