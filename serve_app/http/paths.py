"""The values of a path as they were before they were encoded: slashes, DIDs, texts.

A server decodes the path before it is routed; then a node named `a/b` looks like two parts of it.
So each part is decoded by itself, and its own slashes are kept apart until its value is read.
Names in braces mean the same in every path. An id whose form the service itself gives (a UUID, a
node's name) is looked up: a value of another form names nothing that exists. One whose form is
public (a capability's id, a number) is refused as invalid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import unquote, unquote_to_bytes

from core.errors import Problem
from core.records.api.agents import SemanticVersion
from core.records.api.kinds import AgentName, CapabilityId, EntryId, NodeName, TraceId, Uuid, text
from core.records.api.peers import PeerId
from core.records.bounds import DID_CHARS_MAX, text_defect

# Half of a character, so that no decoded text has it.
_SLASH: Final = "\udc2f"
HOOK_PATH: Final = "/v1/hooks/"
# The token of a hook, which is a credential.
_TOKEN: Final = re.compile(rf"({HOOK_PATH})[^/]+")

_KEY_ID_CHARS_MAX: Final = 128
_MACHINE_CHARS_MIN, _MACHINE_CHARS_MAX = 6, 64


@dataclass(frozen=True, slots=True)
class PathValue:
    """What a name in braces means: the type and the description of its value.

    `looked_up`: what the value leads to, which is not known under values of another form; None:
    such values are invalid.
    """

    hint: Any
    description: str
    looked_up: str | None = None


PATH_VALUES: Final[Mapping[str, PathValue]] = {
    "workflow_id": PathValue(Uuid, "Id of the workflow.", "the workflow"),
    "node": PathValue(NodeName, "Name of the node.", "the node"),
    "receipt": PathValue(
        Annotated[str, text(1, DID_CHARS_MAX)],
        "Id of the receipt, or the DID of an agent.",
        "the receipt",
    ),
    "trigger_id": PathValue(
        Uuid, "Id of the trigger, which is also that of its template.", "the trigger"
    ),
    "schedule_id": PathValue(Uuid, "Id of the schedule.", "the schedule"),
    "token": PathValue(
        Annotated[str, text(1, 64)], "Token of the hook, the end of its `hookUrl`.", "the hook"
    ),
    "trace_id": PathValue(TraceId, "W3C trace id, the `traceId` of a workflow.", "the trace"),
    "task_id": PathValue(Uuid, "Id of the task, the `taskId` of the publish.", "the task"),
    "invoice_id": PathValue(Uuid, "Id of the invoice.", "the invoice"),
    "dispute_id": PathValue(Uuid, "Id of the dispute.", "the dispute"),
    "key_id": PathValue(Annotated[str, text(1, _KEY_ID_CHARS_MAX)], "Id of the key.", "the key"),
    "machine": PathValue(
        Annotated[str, text(_MACHINE_CHARS_MIN, _MACHINE_CHARS_MAX)],
        "Id of the machine in Ray, or a prefix of it.",
        "the machine",
    ),
    "name": PathValue(AgentName, "The name, in any case.", "the name"),
    "recovery_id": PathValue(Uuid, "Id of the recovery request.", "the recovery"),
    "webhook_id": PathValue(Uuid, "Id of the webhook.", "the webhook"),
    "delivery_id": PathValue(Uuid, "Id of the delivery.", "the delivery"),
    "peer_id": PathValue(PeerId, "Id of the peer.", "the peer"),
    "subnet_id": PathValue(Uuid, "Id of the subnet.", "the subnet"),
    "policy_id": PathValue(Uuid, "Id of the policy.", "the policy"),
    "audit_id": PathValue(EntryId, "Id of the audit entry."),
    "capability_id": PathValue(CapabilityId, "Id of the capability."),
    "version": PathValue(SemanticVersion, "The semantic version."),
    # A text that is no DID is one that is not known.
    "did": PathValue(str, "The DID, raw or percent-encoded."),
}


def names_in(template: str) -> tuple[str, ...]:
    """Return the names in braces of a path."""
    return tuple(part[1:-1] for part in template.split("/") if part.startswith("{"))


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


def path_texts(scope: Mapping[str, Any], template: str) -> Mapping[str, str]:
    """Return the texts in a path by their names, as they were before they were encoded.

    Args:
        scope: ASGI's, routed.
        template: the operation's path.
    """
    found: dict[str, str] = scope.get("path_params", {})
    if found and _SLASH in scope["path"]:
        found = {name: value.replace(_SLASH, "/") for name, value in found.items()}
    if "did" in found:
        did = _did(found["did"], scope.get("raw_path") or b"", template)
        found = {**found, "did": did}
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
