"""The dispatch request to an agent for one node, and the agent's reply.

The service also sends members that only some agents read (`capability`, `input`). These records
have only the members of the specification; unknown members are ignored.
Reference: features.md (Dispatch, Agent interface).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel


class _DispatchRecord(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True
    )


class ParentResult(_DispatchRecord):
    """The result of one parent node."""

    result: dict[str, Any] = Field(default_factory=dict)


class DispatchRequest(_DispatchRecord):
    """One attempt of one node, sent by POST to the agent's dispatch path."""

    event_id: str
    capability_id: str
    agent_did: str | None = None
    inputs: dict[str, Any] = Field(default_factory=dict)
    parents: dict[str, ParentResult] = Field(default_factory=dict)
    workflow_id: str | None = None
    task_id: str | None = None
    node_id: str | None = None
    attempt: int | None = None
    result_id: str | None = None
    timestamp: str | None = None
    meta: dict[str, Any] | None = None

    @field_validator("inputs", "parents", mode="before")
    @classmethod
    def _absent_is_empty(cls, value: object) -> object:
        # Agent rules 3: a missing `inputs` is an empty object. Null means the same.
        return {} if value is None else value


class DispatchReply(_DispatchRecord):
    """The agent's reply. It has the same `eventId` as the request."""

    event_id: str
    status: Literal["success", "error"]
    result: dict[str, Any] | None = None
    error: str | None = None
    code: str | None = None
    metrics: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the reply in its JSON form, without absent members."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class CancelNotice(_DispatchRecord):
    """A notice to an agent that the result of one of its attempts is not needed any more."""

    event_id: str
    workflow_id: str
    node_id: str
    reason: str
