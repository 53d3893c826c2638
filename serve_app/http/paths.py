"""Decodes the values in a request's path: ids, node names with slashes, DIDs.

HTTP servers decode the path before it is routed. A node named `a/b` would then look like two path
segments. So each segment is decoded separately, and a slash inside a segment is replaced by a
marker until the value is read.

A name in braces has the same meaning in every path template. For most names, an invalid value gives
NOT_FOUND, because no object can have this id. An invalid capability id, version or audit id gives
INVALID_REQUEST, because its format is public.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Annotated, Any, Final, get_args
from urllib.parse import unquote, unquote_to_bytes

from core.errors import Problem
from core.records.api.agents import SemanticVersion
from core.records.api.kinds import AgentName, CapabilityId, EntryId, NodeName, TraceId, Uuid, text
from core.records.api.peers import PeerId
from core.records.bounds import DID_CHARS_MAX, text_defect

# Replaces a slash inside a path segment. A lone surrogate never occurs in decoded text.
_SLASH: Final = "\udc2f"
HOOK_PATH: Final = "/v1/hooks/"
# Matches the token of a hook. The token is a credential, so logs must not show it.
_TOKEN: Final = re.compile(rf"({HOOK_PATH})[^/]+")

_KEY_ID_CHARS_MAX: Final = 128
_MACHINE_CHARS_MIN, _MACHINE_CHARS_MAX = 6, 64


# The type of the value that a name in braces stands for, with its description if that is not
# "Id of the …".
PATH_VALUES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(
        ("workflow_id", "trigger_id", "schedule_id", "task_id", "invoice_id", "dispute_id",
         "recovery_id", "webhook_id", "delivery_id", "subnet_id", "policy_id"),
        Uuid,
    ),
    "node": Annotated[NodeName, "Name of the node."],
    "receipt": Annotated[str, text(1, DID_CHARS_MAX), "Id of the receipt, or the DID of an agent."],
    "token": Annotated[str, text(1, 64), "Token of the hook, the end of its `hookUrl`."],
    "trace_id": Annotated[TraceId, "W3C trace id, the `traceId` of a workflow."],
    "key_id": Annotated[str, text(1, _KEY_ID_CHARS_MAX)],
    "machine": Annotated[
        str,
        text(_MACHINE_CHARS_MIN, _MACHINE_CHARS_MAX),
        "Id of the machine in Ray, or a prefix of it.",
    ],
    "name": Annotated[AgentName, "The name, in any case."],
    "peer_id": PeerId,
    "audit_id": EntryId,
    "capability_id": CapabilityId,
    "version": Annotated[SemanticVersion, "The semantic version."],
    # Any text is accepted: a text that is not a DID gives NOT_FOUND like an unknown DID.
    "did": Annotated[str, "The DID, raw or percent-encoded."],
}  # fmt: skip
# What a value identifies, if its name does not say it.
_THINGS: Final = {"token": "hook", "audit_id": "audit entry"}
# Values whose format is public.
PUBLIC_FORMATS: Final = ("audit_id", "capability_id", "version")


def thing_named(name: str) -> str:
    """Return what a name in braces identifies, such as `the workflow`."""
    return f"the {_THINGS.get(name, name.removesuffix('_id'))}"


def description_of(name: str) -> str:
    """Return the description of the value that a name in braces stands for."""
    texts = [one for one in get_args(PATH_VALUES[name]) if isinstance(one, str)]
    return texts[0] if texts else f"Id of {thing_named(name)}."


def names_in(template: str) -> tuple[str, ...]:
    """Return the names in braces of a path template, in order."""
    return tuple(part[1:-1] for part in template.split("/") if part.startswith("{"))


def routed(scope: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return an ASGI scope whose path is ready for routing.

    In this path, a slash that the client sent encoded does not separate segments. Leading slashes
    are reduced to one: some clients join a base URL that ends in a slash with a path that starts
    with a slash.
    """
    raw_path: bytes = scope.get("raw_path") or b""
    if b"%2F" in raw_path or b"%2f" in raw_path:
        parts = raw_path.partition(b"?")[0].decode("ascii", "replace").split("/")
        path = "/".join(unquote(part).replace("/", _SLASH) for part in parts)
        scope = {**scope, "path": path}
    if scope.get("path", "").startswith("//"):  # Lifespan scopes have no path.
        scope = {**scope, "path": "/" + scope["path"].lstrip("/")}
    return scope


def path_text(scope: Mapping[str, Any]) -> str:
    """Return the decoded path for logs, with the token of a hook replaced by an ellipsis."""
    path: str = scope["path"]
    return _TOKEN.sub(r"\1…", path.replace(_SLASH, "/"))


def path_texts(scope: Mapping[str, Any], template: str) -> Mapping[str, str]:
    """Return the decoded values in a path, keyed by their names in braces.

    Args:
        scope: the ASGI scope after routing.
        template: the path template of the operation.
    """
    found: dict[str, str] = scope.get("path_params", {})
    if found and _SLASH in scope["path"]:
        found = {name: value.replace(_SLASH, "/") for name, value in found.items()}
    if "did" in found:
        did = _did(found["did"], scope.get("raw_path") or b"", template)
        found = {**found, "did": did}
    return found


def _did(decoded: str, raw_path: bytes, template: str) -> str:
    """Return the DID in a path; clients send it raw or percent-encoded.

    A did:web may itself contain percent-encoded characters (a port). If the colons of the DID are
    not encoded, the client sent the DID raw, so its percent signs are not decoded.
    """
    # The index counts from the end, because the raw path may begin with several slashes.
    place = template.split("/").index("{did}") - template.count("/") - 1
    sent = raw_path.partition(b"?")[0].split(b"/")[place].decode("ascii", "replace")
    return sent if sent.startswith("did:") and "%25" not in sent else decoded


def path_problem(raw_path: bytes) -> Problem | None:
    """Return the problem of a path that is not UTF-8 or contains U+0000; None for a valid path."""
    # The server decodes with replacement characters, so this function checks the raw bytes.
    if b"%" not in raw_path and raw_path.isascii():
        return None
    try:
        defect = text_defect(unquote_to_bytes(raw_path.partition(b"?")[0]).decode())
    except UnicodeDecodeError:
        defect = "bytes that are not UTF-8"
    return None if defect is None else Problem("path", defect, "UTF-8 text without U+0000")
