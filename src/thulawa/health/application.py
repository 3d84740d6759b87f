"""WindowCounts: exact counts of messages per window, as a long-running application on Spark.

A round counts the new messages in a Spark job, adds them to the totals, and writes the totals that
changed. There is no checkpoint: an instance that starts reads the output topic to its end, which
has the totals and the offset to continue at. Counts are exact whichever instance counts a partition
(see `thulawa.health.changelog`); partitions are divided among instances only to divide the work.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias, get_args

from thulawa.brokers.port import GroupMember, open_broker
from thulawa.core.durations import Duration, milliseconds
from thulawa.core.names import check_name
from thulawa.core.types import Offsets, TopicPartition
from thulawa.errors import ConfigurationError, StateError, ThulawaError
from thulawa.health.changelog import CountsChangelog, restore
from thulawa.health.counter import Added, Rule, Totals
from thulawa.health.counts import Count
from thulawa.health.dataframes import count_ranges, count_rows, first_offsets
from thulawa.health.merging import Merging
from thulawa.health.sinks import AnySink, CountSink, put_all, seed_all
from thulawa.health.statuses import Status
from thulawa.health.tasks import Range, added_by
from thulawa.spark.session.spark_session import session

_log = logging.getLogger("thulawa.counts")
_PAUSE = 0.02
_JOIN_TIMEOUT = 60.0  # seconds; longer than a group takes to notice a dead member
_CANCELLED = "[SPARK_JOB_CANCELLED]"  # by Ctrl-C, most often: PySpark cancels jobs then
Partitions: TypeAlias = Literal["all", "shared"] | Mapping[str, Iterable[int]]
Lost: TypeAlias = Literal["fail", "skip"]


class WindowCounts:
    """Count the messages of topics per partition, window and status, exactly.

    ``status`` is a function of a message's bytes that returns True (valid), False (invalid) or the
    name of a status; `thulawa.health.json_schema` creates one. ``output`` is the compacted topic
    that is both the result and the state. ``log`` is the address of the broker (``file:./topics``,
    ``kafka://host:9092``).

    ``partitions`` selects what this instance counts: ``"all"``; ``"shared"``, an even share among
    the instances that run; or partitions by number. Counts stay exact in every case, even when two
    instances count the same partition. ``sinks`` receive the totals that changed; with ``merge``,
    summed over partitions. ``lost`` decides what happens when retention has removed messages that
    were not counted.

    .. versionadded:: 0.1.0
    """

    def __init__(  # noqa: PLR0913 options by name
        self,
        topics: str | Sequence[str],
        *,
        status: Status,
        output: str,
        application_id: str,
        log: str,
        window: Duration = "1 second",
        expire: Duration = "1 day",
        every: Duration = "1 second",
        partitions: Partitions = "all",
        sinks: Iterable[AnySink] = (),
        merge: bool = False,
        max_records: int = 1_000_000,
        lost: Lost = "fail",
        spark: Any = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_name(application_id, "application")
        self.application_id = application_id
        self._topics = (topics,) if isinstance(topics, str) else tuple(topics)
        if not self._topics or output in self._topics:
            raise ConfigurationError("name topics to count, and another topic as output")
        if max_records < 1:
            raise ConfigurationError("max_records must be at least 1")
        if lost not in get_args(Lost):
            raise ConfigurationError(f"lost is one of {', '.join(get_args(Lost))}, not {lost!r}")
        self._partitions = _checked(partitions, self._topics)
        self._rule = Rule.of(status, window, expire)
        self._every = milliseconds(every, name="every") / 1000
        self._broker = open_broker(log)
        self._changelog = CountsChangelog(self._broker, output, application_id)
        self._sinks = tuple(sinks)
        self._merging = Merging(self._rule.expire) if merge else None
        self._max_records = max_records
        self._lost = lost
        self._spark = spark
        self._clock = clock
        self._member: GroupMember | None = None  # where partitions are shared
        self._acquired = False
        self._totals: dict[TopicPartition, Totals] = {}
        self._overtaken: dict[TopicPartition, int] = {}  # offsets that other instances reached
        self._identities: dict[str, bytes | None] = {}
        self._query_checked = False
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._error: BaseException | None = None

    # --- life

    def start(self) -> Self:
        """Start counting in a thread; raise `ConfigurationError` for topics that do not exist."""
        if self._thread is not None:
            raise ConfigurationError(f"{self.application_id!r} has been started already")
        self._prepare()
        self._session()
        self._thread = threading.Thread(
            target=self._run, name=f"counts-{self.application_id}", daemon=True
        )
        self._thread.start()
        return self

    def stop(self, timeout: Duration | None = None) -> bool:
        """Stop after the current round and release the partitions; return whether it stopped."""
        self._stopping.set()
        if self._thread is not None and not self._join(timeout):
            return False
        with self._lock:
            self._release()
        return True

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Wait until counting ends and return whether it did; raise the error that ended it."""
        ended = self._join(timeout)
        if self._error is not None:
            raise self._error
        return ended

    def _join(self, timeout: Duration | None) -> bool:
        assert self._thread is not None, "not started"
        self._thread.join(None if timeout is None else milliseconds(timeout) / 1000)
        return not self._thread.is_alive()

    def process_all_available(self, timeout: Duration = "10 minutes") -> None:
        """Wait until the messages now in this instance's partitions are counted and in the sinks.

        Raise the error that ended the application, if one did.
        """
        deadline = time.monotonic() + milliseconds(timeout) / 1000
        ends = self._broker.end_offsets(*self._topics)
        while not self._reached(ends):
            if self._thread is None or not self._thread.is_alive():
                raise self._error or ThulawaError(f"{self.application_id!r} is not running")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.application_id!r} did not count all messages in time")
            time.sleep(_PAUSE)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- counting

    def count_available(self) -> int:
        """Count the messages that are there now; return how many were counted.

        For a scheduled job, in place of `start`.
        """
        self._prepare()
        total, deadline = 0, time.monotonic() + _JOIN_TIMEOUT
        while (found := self._round()) or not self._joined():
            total += found
            if not found:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.application_id!r} was assigned no partitions")
                time.sleep(_PAUSE)
        return total

    def count_batch(self, df: Any, batch: int = 0) -> None:  # noqa: ARG002 Spark hands it over
        """Count the rows of a DataFrame; for ``writeStream.foreachBatch``.

        Start the query at `starting_offsets`. Raise `ConfigurationError` if the first batch leaves
        out messages that are not counted. Rows that are counted already are skipped, so a batch
        may be run again.
        """
        with self._lock:
            self._acquire_all()
            since = {partition: totals.since for partition, totals in self._totals.items()}
            rows = count_rows(df, self._rule, since)
            if not self._query_checked:
                self._query_checked = self._check_first_batch(df)
            counted = added_by(rows.toArrow())
            self._commit({at: added for at, added in counted.items() if at in since}, {})

    def starting_offsets(self) -> dict[str, dict[str, int]]:
        """Return the next offset of each partition, in the form of Spark's startingOffsets.

        ``.option("startingOffsets", json.dumps(health.starting_offsets()))`` begins there.
        """
        with self._lock:
            self._acquire_all()
            found: dict[str, dict[str, int]] = {}
            for (topic, number), totals in sorted(self._totals.items()):
                found.setdefault(topic, {})[str(number)] = totals.position
            return found

    def counts(self) -> list[Count]:
        """Return the totals of this instance's partitions in windows that have not expired."""
        with self._lock:
            return [
                count for _, totals in sorted(self._totals.items()) for count in totals.counts()
            ]

    # --- inside

    def _session(self) -> Any:
        if self._spark is None:
            # a progress bar for each round would fill the terminal
            self._spark = session(
                self.application_id, settings={"spark.ui.showConsoleProgress": "false"}
            )
        return self._spark

    def _prepare(self) -> None:
        """Raise `ConfigurationError` unless the topics, and the partitions by number, exist."""
        self._changelog.prepare(self._topics)
        chosen = () if isinstance(self._partitions, str) else self._partitions
        for topic, number in chosen:
            count = self._changelog.partitions(topic)
            if number not in range(count):
                raise ConfigurationError(
                    f"partitions: {topic!r} has no partition {number}, but 0 to {count - 1}"
                )

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            with self._lock:  # the totals of a failed round are visible only with its error
                try:
                    self._round()
                except Exception as error:  # noqa: BLE001 await_termination raises it
                    self._error = error
                    shown = "Spark's job was cancelled" if _CANCELLED in str(error) else error
                    _log.error("%s has ended: %s", self.application_id, shown)
                    return
            self._stopping.wait(max(0.0, began + self._every - time.monotonic()))

    def _round(self) -> int:
        """Count new messages, up to ``max_records`` of each partition; return how many."""
        with self._lock:
            while True:
                self._acquire()
                ranges = self._ranges()
                if not ranges:
                    return self._commit({}, {})
                try:
                    counted = self._counted(ranges)
                except Exception:
                    # retention may have removed messages of these ranges in the meantime
                    starts = self._starts([one.partition for one in ranges])
                    if all(starts[one.partition] <= one.since.offset for one in ranges):
                        raise
                else:
                    return self._commit(counted, {one.partition: one.end for one in ranges})

    def _counted(self, ranges: Sequence[Range]) -> dict[TopicPartition, list[Added]]:
        """Count ranges in a Spark job."""
        counted = count_ranges(self._session(), self._broker, ranges, self._rule)
        return added_by(counted.toArrow())

    def _acquire_all(self) -> None:
        """Acquire the partitions for a query of the user's, which reads them in any case."""
        if self._partitions == "shared":
            raise ConfigurationError(
                "a query of your own reads partitions that other instances may have: use "
                'partitions="all", or name them'
            )
        self._prepare()
        self._acquire()

    def _acquire(self) -> None:
        """Update which partitions are this instance's, and restore the totals of new ones."""
        if not self._acquired:
            if self._merging is not None:
                sums = self._merging.follow(self._changelog)
                seed_all(self._sinks, sums)
                put_all(self._sinks, sums)
            if self._partitions == "shared":
                group = f"{self._changelog.job}/members"
                self._member = self._broker.join_group(group, self._topics)
            self._acquired = True
        self._check_identities()
        owned = self._owned()
        starts = self._starts(owned)
        for partition, totals in list(self._totals.items()):
            # messages that were removed may have been counted elsewhere: restore from the topic
            if partition not in owned or totals.position < starts[partition]:
                del self._totals[partition]
        new = sorted(owned - set(self._totals))
        read_up_to = self._changelog.claim(new)
        for partition, restored in restore(self._changelog, new, self._rule.expire).items():
            if self._merging is None:
                seed_all(self._sinks, restored.totals.counts())
                # its writer may have died before it could pass them to its sinks
                put_all(self._sinks, restored.last)
            if restored.totals.position < self._overtaken.pop(partition, 0):
                raise StateError(
                    f"{_name(partition)}: the output topic has fewer counts than were written to "
                    "it; if it was deleted, use another application_id"
                )
            if restored.identity not in (None, self._identities[partition.topic]):
                raise _recreated(partition.topic)
            # messages before this that are not in the totals were late, not lost
            reached = max(restored.totals.position, read_up_to[partition])
            self._check_lost(partition, reached, starts[partition])
            restored.totals.add((), position=starts[partition])
            self._totals[partition] = restored.totals

    def _owned(self) -> set[TopicPartition]:
        """Return the partitions that this instance counts now."""
        existing = {
            TopicPartition(topic, number)
            for topic in self._topics
            for number in range(self._changelog.partitions(topic))
        }
        if self._member is not None:
            return existing & self._member.assigned()
        return existing if isinstance(self._partitions, str) else existing & self._partitions

    def _check_identities(self) -> None:
        """Raise `StateError` if an input topic was deleted and created again while this ran."""
        for topic in self._topics:
            identity = self._changelog.identity(topic)
            if self._identities.setdefault(topic, identity) != identity:
                raise _recreated(topic)

    def _check_lost(self, partition: TopicPartition, reached: int, start: int) -> None:
        if 0 < reached < start:
            lost = (
                f"{_name(partition)}: offsets {reached} to {start} were removed before they were "
                "counted"
            )
            if self._lost == "fail":
                raise StateError(f'{lost}; set lost="skip" to continue without them')
            _log.warning("%s", lost)

    def _check_first_batch(self, df: Any) -> bool:
        """Raise if the first batch leaves messages out; return whether it has any rows."""
        firsts = {at: first for at, first in first_offsets(df).items() if at in self._totals}
        gaps = [
            Range(partition, self._totals[partition].since, first)
            for partition, first in sorted(firsts.items())
            if first > self._totals[partition].position
        ]
        # a gap may hold no messages: control records of Kafka's transactions have offsets, too
        for partition in sorted(self._counted(gaps) if gaps else ()):
            raise ConfigurationError(
                f"the query begins at offset {firsts[partition]} of {_name(partition)}, but "
                f"{self._totals[partition].position} is the next to be counted; start it at "
                "starting_offsets()"
            )
        return bool(firsts)

    def _starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        starts = self._broker.start_offsets(*{topic for topic, _ in partitions})
        return {partition: starts[partition.topic][partition.partition] for partition in partitions}

    def _ranges(self) -> list[Range]:
        ranges = []
        ends = self._broker.end_offsets(*sorted({topic for topic, _ in self._totals}))
        for partition, totals in sorted(self._totals.items()):
            end = ends[partition.topic][partition.partition]
            if end < totals.position:
                raise _recreated(partition.topic)
            if end > totals.position:
                end = min(end, totals.position + self._max_records)
                ranges.append(Range(partition, totals.since, end))
        return ranges

    def _commit(
        self, counted: Mapping[TopicPartition, list[Added]], ends: Mapping[TopicPartition, int]
    ) -> int:
        """Add counts to the totals, write and publish what changed; return how many messages."""
        changes: dict[TopicPartition, list[Count]] = {}
        for at in sorted({*counted, *ends}):
            changes[at] = self._totals[at].add(counted.get(at, ()), position=ends.get(at, 0))
        ends = {at: self._totals[at].position for at in changes}
        now = int(self._clock() * 1000)
        try:
            written = self._changelog.write(changes, now, ends) if changes else set()
        except BaseException:
            # the topic may not have what was added here: restore from it
            for at in changes:
                del self._totals[at]
            raise
        for at in (at for at in changes.keys() - written if changes[at]):
            # these changes were not written, so the next ones would leave a gap: restore
            _log.info("%s: another instance is ahead", _name(at))
            offsets = [one.offset for one in changes[at] if one.value is not None]
            self._overtaken[at] = max(offsets, default=0)
            del self._totals[at]
        if self._merging is None:
            shown = [one for at in changes if at in written for one in changes[at]]
            put_all(self._sinks, [one for one in shown if one.value is not None])
        else:
            put_all(self._sinks, self._merging.follow(self._changelog))
        return sum(one.messages for found in counted.values() for one in found)

    def _reached(self, ends: Offsets) -> bool:
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._joined() and all(
                totals.position >= ends[topic][number]
                for (topic, number), totals in self._totals.items()
            )

    def _joined(self) -> bool:
        return self._acquired and (self._member is None or self._member.joined)

    def _release(self) -> None:
        self._totals.clear()
        self._acquired = False
        if self._member is not None:
            self._member.close()
            self._member = None
        for sink in self._sinks:
            if isinstance(sink, CountSink):
                sink.close()


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _recreated(topic: str) -> StateError:
    return StateError(
        f"the topic {topic!r} is not the one that was counted: it was deleted and created again, "
        "or lost messages at its end; count it under another application_id and output"
    )


def _checked(partitions: Partitions, topics: Sequence[str]) -> str | frozenset[TopicPartition]:
    if isinstance(partitions, str):
        if partitions not in ("all", "shared"):
            raise ConfigurationError(
                f"partitions={partitions!r}: use 'all', 'shared' or {{topic: [numbers]}}"
            )
        return partitions
    if unknown := sorted(set(partitions) - set(topics)):
        raise ConfigurationError(f"partitions: {unknown[0]!r} is not one of the topics {topics}")
    return frozenset(
        TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers
    )
