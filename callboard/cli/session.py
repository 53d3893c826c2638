"""The common parts of all verbs: shared options, the client, printing of replies, exit codes.

A command of the command line consists of a noun and a verb, such as `workflow publish`. A verb is a
function whose first parameter is a `Session`. The decorator `verb` adds the shared options and
turns errors into exit codes. The exit codes are: 0 success, 1 a workflow or check without success,
2 wrong usage, 3 the service is unreachable or has refused the request.
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
    """The format in which replies are printed."""

    text = "text"
    json = "json"


HomeOption = Annotated[
    Path | None,
    typer.Option(help="Folder of the deployment; default: CALLBOARD_HOME.", show_default=False),
]
OutputOption = Annotated[Output, typer.Option(help="Output format.")]
# Control characters that a terminal interprets, except newline and tab.
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
        url: the service's address; None: see `locate`.
        api_key: the caller's API key; None: see `locate`.
        home: the deployment's folder from the option `--home`, None without that option.
        output: the format of the output.
        reason: why the caller uses an operator's right, for the audit log; None: no reason.
    """

    url: str | None
    api_key: str | None
    home: Path | None
    output: Output
    reason: str | None = None

    @cached_property
    def client(self) -> Client:
        """A client for the service; `locate` finds the address and the credential."""
        from callboard.client import Client
        from callboard.location import EmptyKey

        try:
            return Client(self.url, self.api_key, home=self.home, reason=self.reason)
        except EmptyKey as error:
            stop(EXIT_USAGE, str(error))
        except (ValueError, OSError) as error:
            stop(EXIT_USAGE, f"CALLBOARD_DID_KEY: {error}")

    def close(self) -> None:
        """Close the client's connections, if the client was used."""
        if "client" in self.__dict__:
            self.client.close()

    @property
    def is_json(self) -> bool:
        """Whether the output is JSON, for programs."""
        return self.output is Output.json

    def show(self, reply: object, text: Callable[[], None]) -> None:
        """Print a reply as JSON, or call `text` to print it for people."""
        if self.is_json:
            print(json.dumps(reply, indent=2, ensure_ascii=False))
        else:
            text()

    def show_table(
        self, reply: object, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]
    ) -> None:
        """Print a reply as JSON, or a table of its rows.

        Args:
            reply: the reply.
            rows: the rows of the table.
            columns: the members of the rows that the table shows.
        """
        self.show(reply, lambda: table(columns, ([row.get(c) for c in columns] for row in rows)))

    def show_record(self, record: Mapping[str, Any]) -> None:
        """Print a record as JSON, or as text with a line for each member."""
        self.show(record, lambda: _print_members(record))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns of numbers are aligned to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    lines = [list(row) for row in rows]
    for place, column in enumerate(columns):
        is_number = lines and all(_is_number(line[place]) for line in lines)
        grid.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for line in lines:
        # rich would read brackets in a `str` as markup, and other users write these values.
        grid.add_row(*(Text(cell(value)) for value in line))
    # If the output is not a terminal, rich would cut lines at 80 columns.
    width = None if sys.stdout.isatty() else 400
    console = Console(highlight=False, width=width)
    with console.capture() as drawn:
        console.print(grid)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def cell(value: object) -> str:
    """Return the text of a value for people, without control characters.

    Amounts have no trailing zeros.
    """
    return printable(_text(value))


def printable(text: str) -> str:
    """Return a text with control characters replaced by spaces.

    The command line prints texts that other users wrote. These texts must not control the terminal.
    """
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
    """Return the error of a record as one line: its code and its message."""
    known = error if isinstance(error, dict) else {"message": error}
    parts = (str(known[name]) for name in ("code", "error", "message") if known.get(name))
    # The error of an unavailable agent has the code twice: in `code` and in `error`.
    return printable(": ".join(dict.fromkeys(parts)))


def stop(code: int, message: str) -> NoReturn:
    """End the process with an exit code, and print a message to standard error."""
    print(f"callboard: {message}", file=sys.stderr)
    raise typer.Exit(code)


top = typer.Typer(
    name="callboard",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def noun(name: str, text: str, panel: str = "Use") -> typer.Typer:
    """Add a noun to the command line, and return the app to which its verbs are added.

    Args:
        name: the noun.
        text: the help text of the noun.
        panel: the section of the help that lists the noun.
    """
    app = typer.Typer(help=text, no_args_is_help=True)
    top.add_typer(app, name=name, rich_help_panel=panel)
    return app


def verb(
    app: typer.Typer, name: str, panel: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds a function as a verb, with the shared options.

    Args:
        app: the app of the verb's noun, or `top`.
        name: the verb.
        panel: the section of the help that lists the verb.
    """

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
        # typer reads the signature, which contains the annotations.
        command.__signature__ = inspect.Signature(own + shared)  # type: ignore[attr-defined]
        command.__annotations__ = {}
        app.command(name, rich_help_panel=panel)(command)
        return function

    return add


def object_in(source: str | Path, what: str) -> dict[str, Any]:
    """Return the JSON object in a file; end the process if the file has none.

    Args:
        source: the path of the file, `-` for standard input.
        what: the expected content for the error message, with an article.
    """
    try:
        value = json.loads(sys.stdin.read() if source == "-" else Path(source).read_text())
    except (OSError, ValueError) as error:
        stop(EXIT_USAGE, f"cannot read {what} from {source}: {error}")
    if not isinstance(value, dict):
        stop(EXIT_USAGE, f"{source} holds {kind_of(value)}, expected {what}")
    return value
