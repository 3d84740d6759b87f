"""Count the valid and invalid messages of topics: ``python -m examples.topic_health --help``.

Start it as often as you like, on as many terminals: instances share the partitions. Kill them as
you like: the counts in the output topic stay exact.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.topic_health.messages import PAYMENT
from thulawa.health import Count, Influx, Prometheus, WindowCounts, json_schema


def main(arguments: Sequence[str] | None = None) -> None:
    """Count until interrupted."""
    options = _options(arguments)
    schema = json.loads(Path(options.schema).read_text()) if options.schema else PAYMENT
    health = WindowCounts(
        options.topics,
        status=json_schema(schema),
        output=options.output,
        application_id="topic-health",
        log=options.log,
        window=options.window,
        expire=options.expire,
        partitions="shared",
        sinks=_sinks(options) or [_tell],
        merge=options.merge,
    )
    print(f"Counting {', '.join(options.topics)} into {options.output}; Ctrl-C ends it", flush=True)
    with health:
        try:
            health.await_termination()
        except KeyboardInterrupt:
            print("stopping")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.topic_health", description=__doc__)
    parser.add_argument("topics", nargs="+", help="topics to count")
    parser.add_argument(
        "--log", default="file:./topics", help="%(default)s, or kafka://localhost:9092"
    )
    parser.add_argument(
        "--output", default="metrics", help="the compacted topic for the counts: %(default)s"
    )
    parser.add_argument("--schema", help="a file with a JSON schema; payments without it")
    parser.add_argument("--window", default="1 second", help="how long a window is: %(default)s")
    parser.add_argument("--expire", default="1 day", help="how late a message may be: %(default)s")
    parser.add_argument("--merge", action="store_true", help="give sinks sums over partitions")
    parser.add_argument("--influx", metavar="URL", help="such as http://localhost:8086")
    parser.add_argument(
        "--database", default="health", help="of InfluxDB, made if need be: %(default)s"
    )
    parser.add_argument("--prometheus", metavar="PORT", type=int, help="serve /metrics there")
    return parser.parse_args(arguments)


def _sinks(options: argparse.Namespace) -> list[Any]:
    sinks: list[Any] = []
    if options.influx:
        sinks.append(Influx(options.influx, database=options.database))
        sinks[-1].create_database()
    if options.prometheus is not None:
        sinks.append(Prometheus(options.prometheus))
    return sinks


def _tell(counts: Sequence[Count]) -> None:
    """Show that something is counted, where nobody else is told."""
    newest = max(count.cell.window for count in counts)
    print(
        f"{datetime.fromtimestamp(newest / 1000, UTC):%H:%M:%S} UTC: {len(counts)} totals",
        flush=True,
    )


if __name__ == "__main__":
    main()
