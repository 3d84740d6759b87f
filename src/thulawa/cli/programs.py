"""``thulawa run``, ``describe``, ``validate``, ``init``, ``restore``, ``reset``."""

import importlib
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer

import thulawa
from thulawa.cli.console import FAILED, Json, explained, print_json
from thulawa.core.durations import milliseconds
from thulawa.errors import ConfigurationError, ThulawaError
from thulawa.streams import Topology

if TYPE_CHECKING:
    from thulawa.runtime.planning import Plan
    from thulawa.spark.micro_batch.restore import Restoring

_POLL_INTERVAL = "200 ms"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Target = Annotated[
    str,
    typer.Argument(
        help="The program, as module:attribute: a Streams, a Topology, a StreamsBuilder or a "
        "function that returns one.",
        show_default=False,
    ),
]
ApplicationId = Annotated[str | None, typer.Option(help="The application's name.")]
BrokerAddress = Annotated[
    str | None,
    typer.Option("--log", help="The broker of its topics: file:./topics, or kafka://host:9092."),
]
CheckpointPath = Annotated[str | None, typer.Option(help="The folder of its state.")]
Execute = Annotated[
    bool, typer.Option("--execute/--dry-run", help="Do it, or only print what would be done.")
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (run, describe, validate, init, restore, reset):
        app.command()(explained(command))


class StopSignals:
    """Context manager that records SIGTERM and SIGINT.

    Before `record_only` a signal raises `KeyboardInterrupt`: nothing is running yet that could be
    stopped gracefully.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._raises = True
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._record) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def record_only(self) -> None:
        """Only record signals from now on; Spark has installed its own handler meanwhile."""
        self._raises = False
        for number in _SIGNALS:
            signal.signal(number, self._record)

    def _record(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
        if self._raises:
            raise KeyboardInterrupt


def run(
    target: Target,
    application_id: ApplicationId = None,
    log: BrokerAddress = None,
    checkpoint: CheckpointPath = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Run without micro-batches: see the docs.")
    ] = False,
    stop_timeout: Annotated[
        str, typer.Option(help="How long a stop waits for the current batch to commit.")
    ] = "25 s",
) -> None:
    """Run an application until SIGTERM or SIGINT (Ctrl-C).

    The first signal ends it when the current batch has committed, with exit code 0. A second one
    ends it at once; the batch is not committed and runs again at the next start.
    """
    streams = _streams(target, application_id, log, checkpoint, continuous=continuous)
    streams.add_state_listener(lambda new, _: typer.echo(new.value, err=True))
    streams.on_restoring = _show_restoring
    timeout = milliseconds(stop_timeout, name="--stop-timeout") / 1000
    try:
        with StopSignals() as signals:
            streams.start()
            signals.record_only()
            while not streams.await_termination(_POLL_INTERVAL):
                if signals.received:
                    _stop(streams, signals, timeout)
    except (ThulawaError, typer.Exit):
        raise
    except Exception as error:  # Spark has logged it with its stack traces
        from thulawa.spark.micro_batch.runner import failure_of  # noqa: PLC0415 most commands need no Spark

        raise failure_of(error) from error


def _stop(streams: "thulawa.Streams", signals: StopSignals, timeout: float) -> None:
    """Stop when the current batch has committed, at a second signal, or after the timeout."""
    deadline = time.monotonic() + timeout
    while not (drained := streams.drain(_POLL_INTERVAL)) and time.monotonic() < deadline:
        if len(signals.received) > 1:
            break
    streams.stop()
    if len(signals.received) > 1:
        typer.secho("stopped at once: the current batch runs again at the next start", err=True)
        raise typer.Exit(128 + signals.received[-1])
    if not drained:
        typer.secho(
            f"the current batch did not commit within {timeout:g} s and runs again at the next "
            "start; see --stop-timeout",
            err=True,
        )


def describe(
    target: Target,
    output: Annotated[
        Literal["text", "mermaid", "dot", "json"], typer.Option("--format", help="The format.")
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
    log: BrokerAddress = None,
    checkpoint: CheckpointPath = None,
) -> None:
    """Check that a program can run, without running it.

    With a log, its topics and its checkpoint are checked too: the exit code is 1 if a start would
    lose state.
    """
    is_topology = not isinstance(load(target), thulawa.Streams)
    check_topics = log is not None or not is_topology
    if is_topology:
        application_id, log = application_id or "validated", log or "file:./topics"
    streams = _streams(target, application_id, log, checkpoint)
    plan = streams.planned(check_topics=check_topics)
    for part in plan.parts.values():
        where = f"in stage {part.stage}" if part.stage else "where its topics are read"
        typer.echo(f"sub-topology {part.group.id} runs {where}, in {len(part.tasks)} task(s)")
    for repartition in plan.repartitions.values():
        typer.echo(f"repartition {repartition.topic} is {repartition.kind}")
    typer.echo(f"stores: {', '.join(plan.topology.stores) or 'none'}")
    for topic in streams.dead_letter_topics:
        typer.echo(f"dead letters: {topic}")
    if check_topics:
        _check_state(streams, plan)


def _check_state(streams: "thulawa.Streams", plan: "Plan") -> None:
    """Print what becomes of the state at a start; exit with code 1 if some would be lost."""
    if not streams.checkpoint.is_dir():
        typer.echo(f"checkpoint: none at {streams.checkpoint}")
        return
    losses = streams.check_state(plan).losses
    for loss in losses:
        typer.secho(f"state would be lost: {loss.why}", err=True, fg="red")
    if losses:
        raise typer.Exit(FAILED)
    typer.echo(f"checkpoint: {streams.checkpoint}, all state is kept")


def init(folder: Annotated[Path, typer.Argument(help="The folder to write.")] = Path()) -> None:
    """Write a small application to start from: app.py and a test of it."""
    files = {folder / "app.py": _APP, folder / "test_app.py": _TEST}
    if existing := [path for path in files if path.exists()]:
        raise ConfigurationError(f"{existing[0]} exists already; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {path}")
    typer.echo("next: thulawa topics create visits && thulawa run app:streams")
    typer.echo("""then: echo '10.0.0.1:{"page": "/"}' | thulawa topics produce visits""")


def restore(
    target: Target,
    application_id: ApplicationId = None,
    log: BrokerAddress = None,
    checkpoint: CheckpointPath = None,
    json_lines: Json = False,
) -> None:
    """Rebuild an application's lost checkpoint from its changelogs; nothing is processed.

    Each store is checked by the number and the checksum of its entries. The next run continues
    at the offsets of the restored state.
    """
    streams = _streams(target, application_id, log, checkpoint)
    streams.on_restoring = _show_restoring
    found = streams.restore()
    if json_lines:
        print_json(map(asdict, found))
        return
    if not found:
        typer.echo("nothing to restore: the checkpoint exists, or no changelog does", err=True)
    for store in found:
        typer.echo(
            f"{store.store}, task {store.task}: {store.entries:,} entries of "
            f"{store.records:,} records, checksum {store.checksum}"
        )


def _show_restoring(progress: "Restoring") -> None:
    typer.echo(f"restored {progress.records:,} of at most {progress.of:,} records", err=True)


def reset(
    target: Target,
    execute: Execute = False,
    application_id: ApplicationId = None,
    log: BrokerAddress = None,
    checkpoint: CheckpointPath = None,
) -> None:
    """Delete an application's state, committed offsets and internal topics."""
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
    """Return the object that ``module:attribute`` names; call it if it is a function."""
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
        f"a {type(program).__name__} is no program; name a Streams, a Topology or a StreamsBuilder"
    )


def _streams(
    target: str,
    application_id: str | None,
    log: str | None,
    checkpoint: str | None,
    *,
    continuous: bool = False,
) -> "thulawa.Streams":
    program = load(target)
    if isinstance(program, thulawa.Streams):
        options = {
            "--application-id": application_id,
            "--log": log,
            "--checkpoint": checkpoint,
            "--continuous": continuous or None,
        }
        if twice := [name for name, value in options.items() if value is not None]:
            raise ConfigurationError(
                f"{target} is a Streams, which has this option itself: leave {twice[0]} out, or "
                "name its topology"
            )
        return program
    if application_id is None or log is None:
        raise ConfigurationError(
            f"{target} is a topology: add --application-id and --log, or name a Streams"
        )
    return thulawa.Streams(
        _topology(program),
        application_id=application_id,
        log=log,
        checkpoint=checkpoint,
        execution="continuous" if continuous else "micro_batch",
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
