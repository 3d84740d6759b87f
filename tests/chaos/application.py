"""The application that is killed, as a program: ``python -m tests.chaos.application FOLDER``.

Four results of the same orders: a count under another key, behind a shuffle; a windowed count;
a join with a table; a join with another stream.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tests.conformance.spark import QUIET, busy
from thulawa.spark.application import Streams
from thulawa.spark.session.spark_session import session
from thulawa.streams import (
    JoinWindows,
    Materialized,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    Topology,
)

__all__ = ["CHECKPOINT", "STORES", "WINDOWS", "built"]

CHECKPOINT = "checkpoint"
STORES = "stores.json"
WINDOWS = TimeWindows.of("10 s", grace="5 s")
JOIN = JoinWindows.of("2 s", grace="60 s")


def built() -> Topology:
    """Build the program."""
    builder = StreamsBuilder()
    orders, payments = builder.stream("orders"), builder.stream("payments")
    profiles = builder.table("profiles", materialized=Materialized.as_("profiles"))

    by_item = orders.group_by(lambda customer, order: order["item"])
    by_item.count(Materialized.as_("per-item")).to_stream().to("item-counts")

    by_window = orders.group_by_key().windowed_by(WINDOWS)
    counts = by_window.count(Materialized.as_("per-window"))
    counts.to_stream(lambda one, _: f"{one.key}@{one.window.start}").to("window-counts")

    orders.left_join(profiles, lambda order, profile: [order["id"], id_of(profile)]).to("enriched")
    paid = orders.left_join(
        payments,
        lambda order, payment: [order["id"], id_of(payment)],
        JOIN,
        StreamJoined(name="paid", store_name="paid"),
    )
    paid.to("paid")
    return builder.build()


def id_of(record: Any) -> Any:
    """Give the number of a record, None of none."""
    return None if record is None else record["id"]


def main(arguments: list[str]) -> None:
    """Run until killed; with ``--to-the-end`` until all is done, and write down the stores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--max-records", type=int, required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--to-the-end", action="store_true")
    options = parser.parse_args(arguments)
    settings = QUIET | {"spark.log.level": "ERROR", "spark.executor.memory": "512m"}
    spark = session("chaos", master=options.master, settings=settings)
    streams = Streams(
        built(),
        application_id="chaos",
        log=f"file:{options.folder / 'topics'}",
        checkpoint=str(options.folder / CHECKPOINT),
        spark=spark,
        max_records=options.max_records,
        on_error=busy,
        # the model is told how the batches were cut
        settings={"spark.sql.streaming.minBatchesToRetain": "1000000"},
    )
    with streams:
        if not options.to_the_end:
            streams.await_termination()
        streams.process_all_available("30 minutes")
        _write_stores(streams, options.folder / STORES)


def _write_stores(streams: Streams, file: Path) -> None:
    """Ask every store for all it has, as a user would."""
    stores: dict[str, dict[str, Any]] = {
        "per-item": dict(streams.store("per-item").all()),
        "per-window": {
            f"{one.key}@{one.window.start}": count
            for one, count in streams.store("per-window").all()
        },
        "profiles": {key: id_of(value) for key, value in streams.store("profiles").all()},
    }
    file.write_text(json.dumps(stores), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
