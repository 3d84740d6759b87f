"""Measure topic health beside Kafka Streams: ``python -m benchmarks.topic_health [--quick]``.

The same payments, validated and counted per second and status: by Kafka Streams 4.1.1, which sends
every message through a repartition topic (``peers/topic-health``), and by `WindowCounts`, from the
same topic of the same broker, and from the embedded log. One system at a time, each on all cores
(the broker takes its share), each with its own way to validate. The first fifth of the messages
warms up and does not count. Kafka Streams runs at least once with a commit a second, its fastest;
Thulawa is exactly once.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer

import thulawa
from benchmarks.brokers import connected, names
from benchmarks.report import TARGET, Column, Progress, Report, Row, figure, judge, machine
from benchmarks.sessions import QUIET
from examples.topic_health.generator import payment
from examples.topic_health.messages import PAYMENT
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.health import json_schema

__all__ = ["main"]

_RUN = f"bench-health-{uuid4().hex[:8]}"
_TX = f"{_RUN}-tx"
_PARTITIONS = 4
_ROUNDS = 5  # the first one warms up
_PER_SECOND = 10_000  # messages in a window
_PEER = Path(__file__).parent / "peers" / "topic-health"
_KINDS = 1_000
_CHUNK = 50_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all systems and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topic_health", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the messages")
    parser.add_argument("--json", action="store_true", help="one object per row")
    parser.add_argument("--arm", choices=("streams", "kafka", "log"), action="append")
    options = parser.parse_args(arguments)
    total = 400_000 if options.quick else 2_000_000
    progress = Progress()
    report = Report("topic_health", progress, as_json=options.json)
    report.section("machine", "Machine", [Column(k, k) for k in machine()], [machine()])
    arms = options.arm or ("streams", "kafka", "log")
    with tempfile.TemporaryDirectory(prefix="bench-health-") as folder:
        report.section(
            "systems",
            f"Valid and invalid messages per second, {_PARTITIONS} partitions, {total:,} messages",
            [
                Column("system", "system"),
                Column("messages_per_second", "messages/s", figure),
                Column("messages_per_cpu_second", "messages/CPU s", figure),
                Column("own_topics", "topics of its own"),
                TARGET,
            ],
            _rows(Path(folder), total, arms, progress),
            ["one system at a time; the first fifth of the messages does not count"],
        )


def _rows(folder: Path, total: int, arms: Sequence[str], progress: Progress) -> Iterator[Row]:
    least = None
    if {"streams", "kafka"} & set(arms):
        with connected(_RUN) as connection:
            progress("topic_health", "filling Kafka")
            _fill_kafka(connection, total)
            before = names(connection) - {f"{_TX}-streams-metrics"}
            if "streams" in arms:
                progress("topic_health", "Kafka Streams")
                measured = _streams(connection.bootstrap, total, folder)
                least = 2 * float(measured["messages_per_second"])
                own = len(names(connection) - before)
                yield {"system": "Kafka Streams 4.1.1", **measured, "own_topics": own}
            if "kafka" in arms:
                progress("topic_health", "Thulawa on Kafka")
                before = names(connection)
                measured = _thulawa(f"kafka://{connection.bootstrap}", total)
                own = len(names(connection) - before)
                yield _judged("Thulawa, Kafka", measured | {"own_topics": own}, least)
    if "log" in arms:
        progress("topic_health", "Thulawa on the embedded log")
        address = f"file:{folder}/topics"
        _fill_log(address, total)
        measured = _thulawa(address, total)
        with Log(address) as log:
            own = len(set(log.topics()) - {_TX})
        yield _judged("Thulawa, embedded log", measured | {"own_topics": own}, least)


def _judged(system: str, measured: Row, least: float | None) -> Row:
    row: Row = {"system": system, **measured}
    return row if least is None else judge(row, "messages_per_second", least, f"≥ {least:,.0f}")


def _payments(total: int) -> Iterator[tuple[int, bytes, int]]:
    """Give partition, value and time of each message: a tenth invalid, one in twenty late."""
    draw = random.Random(1)
    # they end now: brokers remove what is old, and whoever reads it waits in vain
    start = int(time.time() * 1000) - total * 1000 // _PER_SECOND
    kinds = [payment(draw, valid=draw.random() >= 0.1) for _ in range(_KINDS)]
    for number in range(total):
        late = draw.randrange(5_000) if draw.random() < 0.05 else 0
        time_ = start + number * 1000 // _PER_SECOND - late
        yield number % _PARTITIONS, kinds[draw.randrange(_KINDS)], time_


def _fill_kafka(connection: Any, total: int) -> None:
    for topic in (_TX, f"{_TX}-streams-metrics"):
        Topics(connection).ensure(topic, TopicSpec(partitions=_PARTITIONS))
    producer = Producer({**connection.client(), "linger.ms": 50, "batch.num.messages": 10_000})
    for number, (partition, value, time_) in enumerate(_payments(total)):
        producer.produce(_TX, value, None, partition, timestamp=time_)
        if number % 10_000 == 0:
            producer.flush(60)
    if producer.flush(60):
        raise SystemExit("the broker did not take the messages")


def _fill_log(address: str, total: int) -> None:
    with Log(address) as log:
        log.create_topic(_TX, partitions=_PARTITIONS)
        waiting: list[ProducerRecord] = []
        for partition, value, time_ in _payments(total):
            waiting.append(ProducerRecord(None, value, (), time_, partition))
            if len(waiting) == _CHUNK:
                log.append({_TX: waiting})
                waiting = []
        log.append({_TX: waiting})


def _streams(bootstrap: str, total: int, folder: Path) -> Row:
    """Build and run the peer; give what it measured."""
    built = shutil.copytree(_PEER, folder / "peer")
    _run(
        ["mvn", "--batch-mode", "--quiet", f"--file={built / 'pom.xml'}", "compile",
         "dependency:copy-dependencies", f"-DoutputDirectory={built}/jars"],
    )  # fmt: skip
    threads = str(os.cpu_count() or 2)
    answer = _run(
        ["java", "-Xmx2g", "-cp", f"{built}/target/classes:{built}/jars/*",
         "thulawa.peers.TopicHealth", bootstrap, _TX, str(total), threads, f"{folder}/state"]
    )  # fmt: skip
    found = json.loads(answer.strip().splitlines()[-1])
    return _rates(found["messages"], found["seconds"], found["cpu"])


def _rates(messages: float, seconds: float, cpu: float) -> Row:
    return {"messages_per_second": messages / seconds, "messages_per_cpu_second": messages / cpu}


def _cpu() -> float:
    """Give the CPU seconds of this process and of all that it started, but for the broker."""
    ticks, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            broker = b"kafka.Kafka" in (path / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        parents[int(path.name)] = int(fields[1])
        ticks[int(path.name)] = 0 if broker else int(fields[11]) + int(fields[12])
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks[pid] for pid in mine) / os.sysconf("SC_CLK_TCK")


def _run(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603 Maven and Java, over our own program
        command, capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def _thulawa(address: str, total: int) -> Row:
    """Count everything in five rounds; give the rates of the last four."""
    spark = thulawa.session("bench-topic-health", settings=QUIET)
    ended: list[tuple[float, float]] = []
    note: Callable[[Any], None] = lambda _: ended.append((time.perf_counter(), _cpu()))  # noqa: E731
    try:
        health = thulawa.health.WindowCounts(
            _TX,
            status=json_schema(PAYMENT),
            output=f"{_TX}-metrics",
            application_id=_RUN,
            log=address,
            max_records=total // _PARTITIONS // _ROUNDS,
            sinks=[note],
            spark=spark,
        )
        counted = health.count_available()
        health.stop()
    finally:
        spark.stop()
    if counted != total or len(ended) != _ROUNDS:
        raise SystemExit(f"{counted:,} of {total:,} messages in {len(ended)} rounds")
    (first, first_cpu), (last, last_cpu) = ended[0], ended[-1]
    return _rates(total * (_ROUNDS - 1) / _ROUNDS, last - first, last_cpu - first_cpu)


if __name__ == "__main__":
    main()
