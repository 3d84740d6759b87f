"""An application whose queries are made up: no Spark here."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from thulawa.brokers.embedded import Log
from thulawa.spark.application import Streams
from thulawa.streams import Restart, StreamsBuilder

__all__ = ["SOON", "Application", "Query", "RunningQuery", "Start"]

SOON = Restart(first=1, longest=2, attempts=3)


class Query:
    """A query that ends as it is told to."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def wait(self) -> Exception | None:
        return self._error

    def stop(self) -> None: ...


class RunningQuery(Query):
    """A query that runs until it is stopped."""

    def __init__(self) -> None:
        super().__init__(None)
        self.stopped = threading.Event()

    def wait(self) -> Exception | None:
        self.stopped.wait()
        return None

    def stop(self) -> None:
        self.stopped.set()


Start: TypeAlias = Query | Exception


class Application(Streams):
    """An application each start of which gives the next query, or raises it."""

    def __init__(self, folder: Path, starts: Sequence[Start], **options: Any) -> None:
        with Log(f"file:{folder}/topics") as log:
            if "in" not in log.topics():
                log.create_topic("in")
        builder = StreamsBuilder()
        builder.stream("in").to("out")
        chosen: dict[str, Any] = {
            "application_id": "app",
            "log": f"file:{folder}/topics",
            "checkpoint": str(folder / "checkpoint"),
        }
        super().__init__(options.pop("topology", builder.build()), **(chosen | options))
        self._starts: Iterator[Start] = iter(starts)

    def _session(self) -> Any:
        context = SimpleNamespace(
            master="local[1]", accumulator=lambda value, _: SimpleNamespace(value=value)
        )
        return SimpleNamespace(sparkContext=context)

    def _started(self) -> Any:
        start = next(self._starts)
        if isinstance(start, Exception):
            raise start
        return start
