"""A driver that is killed, and another that goes on from its checkpoint."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from thulawa.brokers.embedded import Log

# The kill comes from within a call, a second after the rows of the other partition are through:
# these are in the sink then, while Spark has not committed the batch.
PROGRAM = """
import asyncio, os, signal, sys
import thulawa

folder, driver = sys.argv[1], os.getpid()


async def locate(row):
    with open(f"{folder}/calls", "a") as calls:
        calls.write(row.value.decode() + "\\n")
    if row.value == b"411" and not os.path.exists(f"{folder}/struck"):
        open(f"{folder}/struck", "w").close()
        await asyncio.sleep(1)
        os.killpg(driver, signal.SIGKILL)  # the driver and its JVM
        await asyncio.sleep(60)
    if int(row.value) % 50 == 17:
        raise LookupError("nowhere")
    return b"at " + row.value


spark = thulawa.session(
    master="local[2]", settings={"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
)
visits = (
    spark.readStream.format("thulawa")
    .option("subscribe", "visits")
    .option("maxOffsetsPerTrigger", 200)
    .load(f"file:{folder}/topics")
)
mapping = thulawa.map_by_key(
    locate, key="key", returns="value binary", keep=["key"],
    on_error="dead_letter", dead_letters=f"file:{folder}/topics#dead",
)
query = (
    thulawa.embedded.log_sink(visits.transform(mapping), f"file:{folder}/topics", topic="located")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
"""


def drive(folder: Path) -> int:
    """Run the program to its end, or to the end that it is given; give its exit code."""
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    return subprocess.run(command, start_new_session=True, timeout=110, check=False).returncode


def by_key(log: Log, topic: str) -> dict[bytes | None, list[bytes | None]]:
    values: dict[bytes | None, list[bytes | None]] = {}
    for partition in log.end_offsets(topic):
        for record in log.read(topic, partition, 0):
            values.setdefault(record.key, []).append(record.value)
    return values


@pytest.mark.timeout(240)  # two drivers, one after the other
def test_a_killed_driver_goes_on_with_the_same_rows_in_the_same_order(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with Log(f"file:{tmp_path}/topics") as log:
        log.create_topic("visits", partitions=2)
        log.create_topic("located", partitions=2)
        log.create_topic("dead")
        with log.producer() as producer:
            for number in range(600):
                producer.send("visits", key=b"%d" % (number % 7), value=b"%d" % number)
        assert drive(tmp_path) == -signal.SIGKILL
        assert 0 < sum(log.end_offsets("located").values()) < 600
        assert drive(tmp_path) == 0
        wanted = {
            b"%d" % key: [b"at %d" % n for n in range(key, 600, 7) if n % 50 != 17]
            for key in range(7)
        }
        assert by_key(log, "located") == wanted
        dead = [json.loads(letter.value or b"")["value"] for letter in log.read("dead", 0, 0)]
        assert sorted(map(int, dead)) == list(range(17, 600, 50))
    made = Counter((tmp_path / "calls").read_text(encoding="ascii").split())
    record_property("repeated_calls", made.total() - 600)
    assert len(made) == 600
    assert 600 < made.total() <= 600 + 200, "the batch under way is repeated, and no other"
