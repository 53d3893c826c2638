"""Judges the inputs and results of dispatches by the schemas of their agents.

A small value with a compiled, cheap schema is judged in the event loop. A schema that is not
compiled is first read and compiled. A large value, or a value with an expensive schema, is judged
in the value process. Reference: features.md (Schemas). Decisions messages-and-large-values and
versions-and-schemas.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

from actors.ports import DispatchOrder
from actors.values.agent_schemas import AgentSchemas, refused_result
from actors.values.reply_events import ReceivedReply, judge_received
from actors.values.value_child import find_breach
from actors.values.value_process import JUDGED_IN_LOOP_BYTES_MAX, ValueProcess
from core.errors import NodeErrorCode
from core.json_text import read_json
from core.schemas.value_schema import Breach
from core.workflow.events import BlobRef, Event, Failure, Verdict

Load = Callable[[Collection[BlobRef]], Awaitable[Mapping[str, bytes]]]


class SchemaChecks:
    """Judges values for a dispatcher.

    Args:
        schemas: the agents' schemas.
        process: judges large values.
        load: loads stored results.
    """

    def __init__(self, schemas: AgentSchemas, process: ValueProcess, load: Load) -> None:
        self._schemas = schemas
        self._process = process
        self._load = load

    def is_little(self, name: str, size_bytes: int) -> bool:
        """Say whether a value is small enough to be judged in the event loop.

        Args:
            name: the name of the value's schema, "" for none.
            size_bytes: the size of the value's text.
        """
        return size_bytes <= JUDGED_IN_LOOP_BYTES_MAX and self._schemas.is_at_hand(name, size_bytes)

    def judge_inputs(self, order: DispatchOrder, inputs: bytes) -> Failure | None:
        """Return the failure of inputs that break the agent's inputSchema; None: they are valid.

        The inputs must be small (`is_little`).
        """
        return _refused_inputs(order, self._find_breach(order.input_schema, inputs))

    async def judge_inputs_beside(self, order: DispatchOrder, inputs: bytes) -> Failure | None:
        """Do the same as `judge_inputs`, for inputs of any size.

        Raises: ValueProcessEnded.
        """
        name, schema_text = await self._schemas.load(
            order.input_schema, order.agent_did, order.capability_id, "inputSchema"
        )
        breach = await self._find_breach_beside(order, name, schema_text, inputs)
        return _refused_inputs(order, breach)

    def judge(self, order: DispatchOrder, received: ReceivedReply) -> Event:
        """Return the event of a reply, which must be small (`is_little`)."""
        return judge_received(order, received, self._schemas.at_hand(order.output_schema))

    async def judge_beside(self, order: DispatchOrder, received: ReceivedReply) -> Event:
        """Return the event of a reply of any size. Raises ValueProcessEnded."""
        name, schema_text = "", b""
        if order.output_schema:
            name, schema_text = await self._load_output_schema(order)
        if self.is_little(name, len(received.body)):
            return judge_received(order, received, self._schemas.at_hand(name))
        return await self._process.judge(order, received, schema_text)

    async def judge_result(self, order: DispatchOrder, result: str | BlobRef) -> Failure | None:
        """Return the failure of a handed-in result that breaks its agent's outputSchema, or None.

        Raises:
            LookupError, ValueError: a stored result cannot be read.
            ValueProcessEnded: the value process ended before it had judged the result.
        """
        if isinstance(result, BlobRef):
            text = (await self._load((result,)))[result.hash]
        else:
            text = result.encode()
        name, schema_text = await self._load_output_schema(order)
        breach = await self._find_breach_beside(order, name, schema_text, text)
        return None if breach is None else refused_result(order.agent_did, breach)

    async def _load_output_schema(self, order: DispatchOrder) -> tuple[str, bytes]:
        return await self._schemas.load(
            order.output_schema, order.agent_did, order.capability_id, "outputSchema"
        )

    async def _find_breach_beside(
        self, order: DispatchOrder, name: str, schema_text: bytes, text: bytes
    ) -> Breach | None:
        if self.is_little(name, len(text)):
            return self._find_breach(name, text)
        return await self._process.call(order.payer_did, partial(find_breach, schema_text, text))

    def _find_breach(self, name: str, text: bytes) -> Breach | None:
        schema = self._schemas.at_hand(name)
        return None if schema is None else schema.find_breach(read_json(text), len(text))


def _refused_inputs(order: DispatchOrder, breach: Breach | None) -> Failure | None:
    """Return the failure of inputs that break the agent's inputSchema, None without a breach.

    The failure is final only for this agent: another agent may accept the inputs.
    """
    if breach is None:
        return None
    did, where = order.agent_did, f"at {breach.path}: {breach.problem}"
    message = f"the inputs break the inputSchema of {did} {where}"
    return Failure(NodeErrorCode.INPUT_SCHEMA, message, Verdict.FINAL_FOR_AGENT)
