"""What every verb shares: where the service is, how answers are shown, how the process ends.

A verb is a function whose first parameter is a `Session`; `verb` adds the options that every verb
has and turns failures into exit codes: 0 success, 1 workflow not successful, 2 usage,
3 unreachable or refused.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from callboard.errors import CallboardError
from core.wording import kind_of

if TYPE_CHECKING:
    from callboard.client import Client

EXIT_UNSUCCESSFUL = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3


class Output(StrEnum):
    """How answers are printed."""

    text = "text"
    json = "json"


HomeOption = Annotated[
    Path | None,
    typer.Option(help="Folder of the deployment; default: CALLBOARD_HOME.", show_default=False),
]
OutputOption = Annotated[Output, typer.Option(help="Output format.")]
# What a terminal obeys; not the ends of lines, and not tabs.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_Url = Annotated[str | None, typer.Option(help="Address of the service.", show_default=False)]
_Key = Annotated[str | None, typer.Option(help="API key.", show_default=False)]
_Reason = Annotated[
    str | None,
    typer.Option(help="Reason for using an operator right, for the audit log.", show_default=False),
]


@dataclass(frozen=True)
class Session:
    """One run of a verb.

    Args:
        url: the service's address, None to look it up.
        api_key: the caller's key, None to look it up.
        home: the deployment folder asked for, None for none in particular.
        output: how to print.
        reason: why an operator's right is used, None for no reason.
    """

    url: str | None
    api_key: str | None
    home: Path | None
    output: Output
    reason: str | None = None

    @cached_property
    def client(self) -> Client:
        """A client for the service, found by option, then environment, then deployment files."""
        from callboard.client import Client
        from callboard.locating import EmptyKey

        try:
            return Client(self.url, self.api_key, home=self.home, reason=self.reason)
        except EmptyKey as error:
            stop(EXIT_USAGE, str(error))
        except (ValueError, OSError) as error:
            stop(EXIT_USAGE, f"CALLBOARD_DID_KEY: {error}")

    def close(self) -> None:
        """Close the client's connections, if it was ever used."""
        if "client" in self.__dict__:
            self.client.close()

    @property
    def is_json(self) -> bool:
        """Whether a program reads the answer."""
        return self.output is Output.json

    def show(self, reply: object, text: Callable[[], None]) -> None:
        """Print an answer: as it came for programs, by `text` for people."""
        if self.is_json:
            print(json.dumps(reply, indent=2, ensure_ascii=False))
        else:
            text()

    def show_table(
        self, reply: object, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]
    ) -> None:
        """Print an answer, for people as a table of some members of its rows."""
        self.show(reply, lambda: table(columns, ([row.get(c) for c in columns] for row in rows)))

    def show_record(self, record: Mapping[str, Any]) -> None:
        """Print one record, for people as a line per member."""
        self.show(record, lambda: _print_members(record))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; numbers are set to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    lines = [list(row) for row in rows]
    for place, column in enumerate(columns):
        is_number = lines and all(_is_number(line[place]) for line in lines)
        grid.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for line in lines:
        # As it is: in what others have written, brackets are no markup.
        grid.add_row(*(Text(cell(value)) for value in line))
    # Not cut to 80 columns when a program or a file takes the output.
    width = None if sys.stdout.isatty() else 400
    console = Console(highlight=False, width=width)
    with console.capture() as drawn:
        console.print(grid)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def cell(value: object) -> str:
    """Return a value as people read it; amounts without a float's noise.

    Others write texts: what a terminal would obey is left out of them.
    """
    return printable(_text(value))


def printable(text: str) -> str:
    """Return a text without what a terminal would obey."""
    return _CONTROL.sub(" ", text)


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float() | Decimal():
            return credits_text(value)
        case list():
            return ", ".join(cell(item) for item in value)
        case dict():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)


def credits_text(amount: object) -> str:
    """Return an amount of credits without trailing zeros."""
    text = f"{Decimal(str(amount)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _print_members(record: Mapping[str, Any]) -> None:
    twins = {value for name, value in record.items() if name[-2:] in ("Id", "ID") or name == "did"}
    shown = {name: value for name, value in record.items() if name != "id" or value not in twins}
    width = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        if name == "entry" and isinstance(value, dict):
            value = f"{credits_text(value['amount'])} credits, {value.get('description')}"
        print(f"{name:<{width}}  {cell(value)}")


def error_text(error: object) -> str:
    """Return an error of a record in one line: its code and its message."""
    known = error if isinstance(error, dict) else {"message": error}
    parts = (str(known[name]) for name in ("code", "error", "message") if known.get(name))
    # The error of an unavailable agent has its code twice.
    return printable(": ".join(dict.fromkeys(parts)))


def stop(code: int, message: str) -> NoReturn:
    """End the process with an exit code and a sentence on standard error."""
    print(f"callboard: {message}", file=sys.stderr)
    raise typer.Exit(code)


top = typer.Typer(
    name="callboard",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def noun(name: str, text: str, panel: str = "Use") -> typer.Typer:
    """Add a noun to the command line, in a panel of its help; return the app of its verbs."""
    app = typer.Typer(help=text, no_args_is_help=True)
    top.add_typer(app, name=name, rich_help_panel=panel)
    return app


def verb(
    app: typer.Typer, name: str, panel: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a verb to an app, in a panel of its help: its own parameters, then those of all verbs."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        keyword = inspect.Parameter.KEYWORD_ONLY

        @wraps(function)
        def command(
            *args: Any,
            url: _Url,
            api_key: _Key,
            home: HomeOption,
            output: OutputOption,
            audit_reason: _Reason,
            **own: Any,
        ) -> None:
            session = Session(url, api_key, home, output, audit_reason)
            try:
                function(session, *args, **own)
            except CallboardError as error:
                stop(EXIT_REFUSED, str(error))
            finally:
                session.close()

        shared = [
            inspect.Parameter("url", keyword, annotation=_Url, default=None),
            inspect.Parameter("api_key", keyword, annotation=_Key, default=None),
            inspect.Parameter("home", keyword, annotation=HomeOption, default=None),
            inspect.Parameter("output", keyword, annotation=OutputOption, default=Output.text),
            inspect.Parameter("audit_reason", keyword, annotation=_Reason, default=None),
        ]
        own = [parameter.replace(kind=keyword) for parameter in own]
        # typer reads the signature; the annotations are in it already.
        command.__signature__ = inspect.Signature(own + shared)  # type: ignore[attr-defined]
        command.__annotations__ = {}
        app.command(name, rich_help_panel=panel)(command)
        return function

    return add


def object_in(source: str | Path, what: str) -> dict[str, Any]:
    """Return the JSON object of a file, `-` for standard input; ends the process without one.

    Args:
        what: it should be, with its article.
    """
    try:
        value = json.loads(sys.stdin.read() if source == "-" else Path(source).read_text())
    except (OSError, ValueError) as error:
        stop(EXIT_USAGE, f"cannot read {what} from {source}: {error}")
    if not isinstance(value, dict):
        stop(EXIT_USAGE, f"{source} holds {kind_of(value)}, expected {what}")
    return value
