"""Imports all features, and finds the kind of each command.

To add a command, put its class and its plan, decorated with `@plans(…)`, into a module of
`ledger/features`, and add a migration for its rows. Decision ledger-writer.
"""

from __future__ import annotations

import pkgutil
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Any, Final

from ledger import features
from ledger.commands import Command
from ledger.writer.batch import Batch, Result
from ledger.writer.command_kind import KINDS, CommandKind

for _module in pkgutil.iter_modules(features.__path__):
    import_module(f"{features.__name__}.{_module.name}")

# The union of all command types, for the decoder of messages.
ANY_COMMAND: Final[Any] = reduce(or_, KINDS)


def _refuse_unknown(command: Any, batch: Batch) -> Result:
    raise TypeError(f"a {type(command).__name__} is no command")


_UNKNOWN: Final = CommandKind(_refuse_unknown)


def kind_of(command: Command) -> CommandKind:
    """Return how the writer handles a command. For an unknown type the plan raises TypeError."""
    return KINDS.get(type(command), _UNKNOWN)
