"""``thulawa run``, ``describe``, ``validate``, ``init``, ``restore``, ``reset``: by name."""

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import thulawa
from thulawa.cli.exit_codes import FAILED, explained
from thulawa.cli.signals import StopSignals
from thulawa.core.durations import milliseconds
from thulawa.errors import (
    ConfigurationError,
    ThulawaError,
)
from thulawa.streams import Topology

if TYPE_CHECKING:
    from thulawa.runtime.planning import Plan
    from thulawa.spark.micro_batch.restore import Restoring

__all__ = ["add_to"]

_LOOK = "200 ms"  # between looks for signals

Target = Annotated[
    str,
    typer.Argument(
        help="Where the program is: module:attribute, a Streams, a Topology, a StreamsBuilder "
        "or a function that gives one.",
        show_default=False,
    ),
]
ApplicationId = Annotated[str | None, typer.Option(help="The application's name.")]
LogAddress = Annotated[
    str | None,
    typer.Option("--log", help="Where its topics are: file:./topics, or kafka://host:9092."),
]
CheckpointPath = Annotated[str | None, typer.Option(help="Where its state is kept.")]
Execute = Annotated[
    bool, typer.Option("--execute/--dry-run", help="Do it, or only say what would be done.")
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (run, describe, validate, init, restore, reset):
        app.command()(explained(command))


def run(
    target: Target,
    application_id: ApplicationId = None,
    log: LogAddress = None,
    checkpoint: CheckpointPath = None,
    stop_timeout: Annotated[
        str, typer.Option(help="How long a stop waits for the batch at hand to commit.")
    ] = "25 s",
) -> None:
    """Run an application until SIGTERM or SIGINT (Ctrl-C).

    The first signal ends it when the batch at hand has committed, with exit code 0. A second one
    ends it at once; the batch leaves no trace and runs again at the next start.
    """
    streams = _streams(target, application_id, log, checkpoint)
    streams.add_state_listener(lambda new, _: typer.echo(new.value, err=True))
    streams.on_restoring = _show_restoring
    timeout = milliseconds(stop_timeout, name="--stop-timeout") / 1000
    try:
        with StopSignals() as signals:
            streams.start()
            signals.take_over()
            while not streams.await_termination(_LOOK):
                if signals.received:
                    _stop(streams, signals, timeout)
    except (ThulawaError, typer.Exit):
        raise
    except Exception as error:  # Spark's, which it has logged with all there is to it
        from thulawa.spark.micro_batch.runner import failure_of  # noqa: PLC0415 most commands need no Spark

        raise failure_of(error) from error


def _stop(streams: "thulawa.Streams", signals: StopSignals, timeout: float) -> None:
    """Stop when the batch at hand has committed, or at a second signal, or when time is up."""
    deadline = time.monotonic() + timeout
    while not (drained := streams.drain(_LOOK)) and time.monotonic() < deadline:
        if len(signals.received) > 1:
            break
    streams.stop()
    if len(signals.received) > 1:
        typer.secho("stopped at once: the batch at hand runs again at the next start", err=True)
        raise typer.Exit(signals.exit_code)
    if not drained:
        typer.secho(
            f"the batch at hand did not commit within {timeout:g} s and runs again at the next "
            "start; see --stop-timeout",
            err=True,
        )


def describe(
    target: Target,
    output: Annotated[
        Literal["text", "mermaid", "dot", "json"], typer.Option("--format", help="How.")
    ] = "text",
) -> None:
    """Print the topology of a program, in Kafka's text or as a diagram."""
    topology = _topology(load(target))
    renderings: dict[str, Callable[[], str]] = {
        "text": topology.describe,
        "mermaid": topology.to_mermaid,
        "dot": topology.to_dot,
        "json": topology.to_json,
    }
    typer.echo(renderings[output]())


def validate(
    target: Target,
    application_id: ApplicationId = None,
    log: LogAddress = None,
    checkpoint: CheckpointPath = None,
) -> None:
    """Check that a program can run, without running it.

    With a log, its topics and its checkpoint are checked too: the exit code is 1 if a start would
    lose state.
    """
    check_topics = log is not None
    if isinstance(load(target), thulawa.Streams):
        streams = _streams(target, application_id, log, checkpoint)
        check_topics = True
    else:
        name = application_id or "validated"
        streams = _streams(target, name, log or "file:./topics", checkpoint)
    made = streams.planned(check_topics=check_topics)
    for part in made.parts.values():
        where = f"in stage {part.stage}" if part.stage else "where its topics are read"
        typer.echo(f"sub-topology {part.group.id} runs {where}, in {len(part.tasks)} task(s)")
    for repartition in made.repartitions.values():
        typer.echo(f"repartition {repartition.topic} is {repartition.kind}")
    stores = ", ".join(made.topology.stores) or "none"
    typer.echo(f"stores: {stores}")
    for topic in streams.dead_letter_topics:
        typer.echo(f"dead letters: {topic}")
    if check_topics:
        _show_state(streams, made)


def _show_state(streams: "thulawa.Streams", made: "Plan") -> None:
    """Print what a start finds of its state; exit with code 1 if it would lose some."""
    if not streams.checkpoint.is_dir():
        typer.echo(f"checkpoint: none at {streams.checkpoint}")
        return
    losses = streams.check_state(made).losses
    for loss in losses:
        typer.secho(f"state would be lost: {loss.why}", err=True, fg="red")
    if losses:
        raise typer.Exit(FAILED)
    typer.echo(f"checkpoint: {streams.checkpoint}, all state is kept")


def init(
    folder: Annotated[Path, typer.Argument(help="Where to put it.")] = Path(),
) -> None:
    """Write a small application to start from: app.py and a test of it."""
    files = {folder / "app.py": _APP, folder / "test_app.py": _TEST}
    if there := [path for path in files if path.exists()]:
        raise ConfigurationError(f"{there[0]} is there already; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {path}")
    typer.echo("next: thulawa topics create visits && thulawa run app:streams")
    typer.echo("""then: echo '10.0.0.1:{"page": "/"}' | thulawa topics produce visits""")


def restore(
    target: Target,
    application_id: ApplicationId = None,
    log: LogAddress = None,
    checkpoint: CheckpointPath = None,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object per store.")] = False,
) -> None:
    """Rebuild an application's lost checkpoint from its changelogs; nothing is processed.

    Each store is checked by the number and the checksum of its entries. The next run goes on
    where the application was.
    """
    streams = _streams(target, application_id, log, checkpoint)
    streams.on_restoring = _show_restoring
    found = streams.restore()
    if json_lines:
        for store in found:
            typer.echo(json.dumps(asdict(store)))
    elif not found:
        typer.echo("nothing to restore: the checkpoint is there, or no changelog is", err=True)
    for store in () if json_lines else found:
        typer.echo(
            f"{store.store}, task {store.task}: {store.entries:,} entries of "
            f"{store.records:,} records, checksum {store.checksum}"
        )


def _show_restoring(told: "Restoring") -> None:
    typer.echo(f"restored {told.records:,} of at most {told.of:,} records", err=True)


def reset(
    target: Target,
    execute: Execute = False,
    application_id: ApplicationId = None,
    log: LogAddress = None,
    checkpoint: CheckpointPath = None,
) -> None:
    """Forget an application's state, offsets and inner topics: it begins anew."""
    streams = _streams(target, application_id, log, checkpoint)
    folder, topics = streams.owned_resources()
    done = "removed" if execute else "would remove"
    has_checkpoint = folder.exists()
    if execute:
        streams.reset()
    if has_checkpoint:
        typer.echo(f"{done} the checkpoint {folder}")
    for topic in topics:
        typer.echo(f"{done} the topic {topic}")
    typer.echo(f"{done} the committed offsets of {streams.application_id}")
    if not execute:
        typer.echo("nothing was removed; add --execute", err=True)


def load(target: str) -> Any:
    """Find what ``module:attribute`` names; call it if it is a function."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"{target!r} names no program; write module:attribute")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{module_name!r} cannot be imported: {error}") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigurationError(f"{module_name!r} has no {attribute!r}")
    known = isinstance(found, thulawa.Streams | Topology | thulawa.StreamsBuilder)
    return found if known or not callable(found) else found()


def _topology(program: Any) -> Topology:
    if isinstance(program, thulawa.Streams):
        return program.topology
    if isinstance(program, thulawa.StreamsBuilder):
        return program.build()
    if isinstance(program, Topology):
        return program
    raise ConfigurationError(
        f"a {type(program).__name__} is no program; give a Streams, a Topology or a StreamsBuilder"
    )


def _streams(
    target: str, application_id: str | None, log: str | None, checkpoint: str | None
) -> "thulawa.Streams":
    program = load(target)
    if isinstance(program, thulawa.Streams):
        _refuse_said_twice(target, application_id=application_id, log=log, checkpoint=checkpoint)
        return program
    if application_id is None or log is None:
        raise ConfigurationError(
            f"{target} is a topology: say --application-id and --log, or name a Streams"
        )
    return thulawa.Streams(
        _topology(program), application_id=application_id, log=log, checkpoint=checkpoint
    )


def _refuse_said_twice(target: str, **options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigurationError(
                f"{target} is a Streams, which says this itself: leave --{name.replace('_', '-')} "
                "out, or name its topology"
            )


_APP = '''"""Counts visits per visitor."""

from thulawa import Streams, StreamsBuilder
from thulawa.streams import Materialized

builder = StreamsBuilder()
counts = builder.stream("visits").group_by_key().count(Materialized.as_("per-visitor"))
counts.to_stream().to("visits-per-visitor")

topology = builder.build()
streams = Streams(topology, application_id="visits", log="file:./topics")
'''
_TEST = '''"""The counts are right, in a test that needs neither Spark nor a broker."""

import pytest
from app import topology
from thulawa.testing import TopologyTestDriver, seeds


@pytest.mark.parametrize("seed", seeds(10))
def test_visits_are_counted_in_any_batches(seed):
    with TopologyTestDriver(topology, partitions=4, batches=seed) as driver:
        visits = [("a", "/"), ("b", "/"), ("a", "/x")]
        driver.create_input_topic("visits").pipe_key_value_list(visits)
        counts = driver.create_output_topic("visits-per-visitor").read_values_by_key()
        assert counts == {"a": [1, 2], "b": [1]}
'''
