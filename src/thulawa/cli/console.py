"""What all commands share: exit codes, errors without a traceback, options, and output."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from thulawa.brokers.port import Broker, open_broker
from thulawa.errors import ConfigurationError, ThulawaError

FAILED = 1
MISUSED = 2
INTERRUPTED = 130
EXIT_CODES = (
    "Exit codes: 0 done; 1 it could not be done, or something that is needed is missing; "
    "2 used wrongly (options, arguments, input); 130 interrupted."
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
LogAddress = Annotated[
    str,
    typer.Option(
        "--log", envvar="THULAWA_LOG", help="The folder of an embedded log, or kafka://host:port."
    ),
]

P = ParamSpec("P")
R = TypeVar("R")


def explained(command: Callable[P, R]) -> Callable[P, R]:
    """Print errors of the library on standard error without a traceback, and exit with a code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ConfigurationError as error:
            raise _exit(str(error), MISUSED) from error
        except ThulawaError as error:
            raise _exit(str(error), FAILED) from error
        except KeyboardInterrupt as error:
            raise _exit("interrupted", INTERRUPTED) from error

    return run


def _exit(reason: str, code: int) -> typer.Exit:
    typer.secho(reason, err=True, fg="red")
    return typer.Exit(code)


@contextmanager
def broker_at(log: str) -> Iterator[Broker]:
    """Open the broker at an address, or the embedded log in a folder; close it at the end."""
    is_address = log.startswith("file:") or "://" in log
    broker = open_broker(log if is_address else f"file:{log}", option="--log")
    try:
        broker.check()
        yield broker
    finally:
        broker.close()


def print_json(rows: Iterable[Any]) -> None:
    """Print one JSON object per line."""
    for row in rows:
        typer.echo(json_line(row))


def json_line(fields: Any) -> str:
    r"""Return JSON in which characters that are not printable are escaped.

    >>> json_line({"key": "é\x9b2J\u202e"})
    '{"key": "é\\u009b2J\\u202e"}'
    """
    text = json.dumps(fields, ensure_ascii=False)
    # such characters are only in strings, where JSON has escapes for them
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def print_table(
    columns: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: Iterable[str] = ()
) -> None:
    """Print rows of text; the columns in ``numbers`` are aligned on the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)
