"""The application that is killed: ``python -m tests.chaos.application FOLDER --max-records N``.

It has four outputs of the same orders: a count by another key, behind a shuffle; a windowed count;
a join with a table; a join with another stream.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.chaos.harness import QUICK_SESSION, end_with_parent
from tests.conformance.spark import busy
from thulawa.spark.application import Streams
from thulawa.spark.session import jvm_archive
from thulawa.spark.session.spark_session import session
from thulawa.streams import (
    JoinWindows,
    Materialized,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    Topology,
)

__all__ = ["CHECKPOINT", "STORES", "WINDOWS", "build"]

CHECKPOINT = "checkpoint"
STORES = "stores.json"
WINDOWS = TimeWindows.of("10 s", grace="5 s")
JOIN = JoinWindows.of("2 s", grace="60 s")


def build() -> Topology:
    """Return the topology."""
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
    """Return the id of a record; None if there is no record."""
    return None if record is None else record["id"]


def main(arguments: list[str]) -> None:
    """Run until killed; with ``--to-the-end`` process all records, then write the stores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--max-records", type=int, required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--to-the-end", action="store_true")
    options = parser.parse_args(arguments)
    end_with_parent()
    java = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {jvm_archive.options()}"
    settings = QUICK_SESSION | {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": java,  # executors of a cluster start as the driver does
    }
    spark = session("chaos", master=options.master, settings=settings)
    streams = Streams(
        build(),
        application_id="chaos",
        log=f"file:{options.folder / 'topics'}",
        checkpoint=str(options.folder / CHECKPOINT),
        spark=spark,
        max_records=options.max_records,
        on_error=busy,
        # the model reads the offsets of every micro-batch
        settings={"spark.sql.streaming.minBatchesToRetain": "1000000"},
    )
    with streams:
        if not options.to_the_end:
            streams.await_termination()
        streams.process_all_available("30 minutes")
        _write_stores(streams, options.folder / STORES)


def _write_stores(streams: Streams, file: Path) -> None:
    """Write the entries of every store, read by interactive queries, to a file."""
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
