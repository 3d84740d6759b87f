"""Applications on one session get its cores by their weights, seen in the scheduler itself."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

# The work of a task is to wait: who gets how many of the four is the scheduler's choice alone.
PROGRAM = """
import collections, json, sys, time
import thulawa
from thulawa.streams import StreamsBuilder
from thulawa.brokers.embedded import Log, ProducerRecord

folder, partitions, batches = sys.argv[1], 32, 3
spark = thulawa.session(
    master="local[4]", settings={"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
)


def application(name, weight):
    address = f"file:{folder}/{name}"
    with Log(address) as log:
        log.create_topic("in", partitions=partitions)
        log.create_topic("out")
        for partition in range(partitions):
            log.append({"in": [ProducerRecord(b"k", b"1", partition=partition)] * batches})
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: time.sleep(0.1)).to("out")
    return thulawa.Streams(
        builder.build(), application_id=name, log=address, checkpoint=f"{folder}/{name}-checkpoint",
        spark=spark, max_records=partitions, weight=weight,
    )


heavy, light = application("heavy", 3), application("light", 1)
seen = collections.Counter()
with heavy, light:
    root = spark.sparkContext._jsc.sc().taskScheduler().rootPool()
    pools = [f"heavy weight 3", "light weight 1"]
    while not heavy._has_read({"in": dict.fromkeys(range(partitions), batches)}):
        found = [root.getSchedulableByName(name) for name in pools]
        if all(found):
            seen[",".join(str(pool.runningTasks()) for pool in found)] += 1
        time.sleep(0.02)
print(json.dumps(seen))
"""


@pytest.mark.timeout(300)
def test_with_weights_of_three_and_one_the_first_has_three_cores_of_four(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = Counter(json.loads(done.stdout.splitlines()[-1]))
    # both have work waiting: all cores are taken, and by both
    full = {pair: n for pair, n in seen.items() if sum(map(int, pair.split(","))) == 4}
    both = {pair: n for pair, n in full.items() if "0" not in pair}
    assert max(both, key=both.__getitem__) == "3,1", seen
    assert both["3,1"] > 0.6 * sum(both.values()), seen
