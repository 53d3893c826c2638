"""How much of a transaction a command takes, estimated before anything of it is made.

A batch is bounded by weight, not only by commands: a thousand steps are small, eight publishes of
512 KiB are not. design.md section 3 (Bounds); decision 0116.
"""

from __future__ import annotations

from typing import Any, Final

from core.workflow.events import NodeChanged
from ledger.commands import AdvanceWorkflow, Command, PublishWorkflow
from ledger.review_commands import CreateInvoice, RebuildReputation

# A stored row with its index entries, as bytes of a batch.
ROW_WEIGHT: Final = 400
# Rows that a command writes besides those of its records: its key, audit entries, entries.
ROWS_OF_A_COMMAND: Final = 4


def weight_of(command: Command) -> int:
    """Return an estimate of what a command adds to a transaction, in bytes."""
    match command:
        case AdvanceWorkflow(records=records):
            return ROWS_OF_A_COMMAND * ROW_WEIGHT + _records_weight(records)
        case PublishWorkflow(records=records):
            texts = len(command.manifest_json) + len(command.reserved_json)
            return ROWS_OF_A_COMMAND * ROW_WEIGHT + texts + _records_weight(records)
        case CreateInvoice(payments=payments, refunds=refunds):
            return (ROWS_OF_A_COMMAND + len(payments) + len(refunds)) * ROW_WEIGHT
        case RebuildReputation(changes=changes):
            return (ROWS_OF_A_COMMAND + len(changes)) * ROW_WEIGHT
        case _:
            # Few and small, but for one text: evidence, a card, a reason.
            texts = sum(len(text) for text in _texts(command))
            return ROWS_OF_A_COMMAND * ROW_WEIGHT + texts


def _records_weight(records: tuple[Any, ...]) -> int:
    weight = ROW_WEIGHT * len(records)
    for record in records:
        if type(record) is NodeChanged and record.result_json is not None:
            weight += len(record.result_json)
    return weight


def _texts(command: Any) -> list[str]:
    names = getattr(command, "__struct_fields__", ())
    values = [getattr(command, name) for name in names]
    return [value for value in values if isinstance(value, str)]
