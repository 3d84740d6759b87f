"""WindowCounts: exact counts of messages per window, as a long-running application on Spark.

A round counts the new messages in a Spark job, adds them to the totals, and writes the totals that
changed. There is no checkpoint: an instance that starts reads the output topic to its end, which
has the totals and the offset to continue at. See `thulawa.health` for why any number of instances
stay exact.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, get_args

from thulawa.brokers.port import open_broker
from thulawa.core.durations import Duration, milliseconds
from thulawa.core.names import check_name
from thulawa.core.types import TopicPartition
from thulawa.errors import (
    ConfigurationError,
    StateError,
    ThulawaError,
)
from thulawa.health.changelog import CountsChangelog, restore
from thulawa.health.counter import Added, Rule
from thulawa.health.counts import Count
from thulawa.health.merging import Merging
from thulawa.health.partition_leases import Fixed, Owner, Partitions
from thulawa.health.sinks import AnySink, CountSink, put_all, seed_all
from thulawa.health.spark_jobs import (
    counted_ranges,
    counted_rows,
    first_offsets,
    partition_owner,
)
from thulawa.health.statuses import Status
from thulawa.health.tasks import Range, added_by
from thulawa.health.totals import Totals
from thulawa.spark.session.spark_session import session

__all__ = ["WindowCounts"]

_log = logging.getLogger("thulawa.counts")
_PAUSE = 0.02
_JOIN_TIMEOUT = 60.0  # seconds; longer than a group takes to notice a dead member
_CANCELLED = "[SPARK_JOB_CANCELLED]"  # by Ctrl-C, most often: PySpark cancels jobs then
Division: TypeAlias = Literal["all", "shared"] | Partitions
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
        partitions: Division = "all",
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
        _check_division(partitions, self._topics)
        self._rule = Rule.of(status, window, expire)
        self._every = milliseconds(every, name="every") / 1000
        self._broker = open_broker(log)
        self._changelog = CountsChangelog(self._broker, output, application_id)
        self._division: Division = (
            partitions
            if isinstance(partitions, str)
            else {topic: tuple(numbers) for topic, numbers in partitions.items()}
        )
        self._sinks = tuple(sinks)
        self._merging = Merging(self._rule.expire) if merge else None
        self._max_records = max_records
        self._lost = lost
        self._spark = spark
        self._clock = clock
        self._owner: Owner | None = None
        self._totals: dict[TopicPartition, Totals] = {}
        self._others: dict[TopicPartition, int] = {}
        self._identities: dict[str, bytes | None] = {}
        self._begun = False
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
        if self._thread is not None:
            self._thread.join(None if timeout is None else milliseconds(timeout) / 1000)
            if self._thread.is_alive():
                return False
        with self._lock:
            self._release()
        return True

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Wait until counting ends and return whether it did; raise the error that ended it."""
        assert self._thread is not None, "not started"
        self._thread.join(None if timeout is None else milliseconds(timeout) / 1000)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def process_all_available(self, timeout: Duration = "10 minutes") -> None:
        """Wait until the messages now in this instance's partitions are counted and in the sinks.

        Raise the error that ended the application, if one did.
        """
        deadline = time.monotonic() + milliseconds(timeout) / 1000
        ends = self._ends()
        while not self._reached(ends):
            if self._thread is None or not self._thread.is_alive():
                raise self._error or ThulawaError(f"{self.application_id!r} is not running")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.application_id!r} did not count all messages in time")
            time.sleep(_PAUSE)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            since = {place: totals.since for place, totals in self._totals.items()}
            rows = counted_rows(df, self._rule, since)
            if not self._begun:
                self._begun = self._begins(df)
            counted = added_by(rows.toArrow())
            self._commit({place: found for place, found in counted.items() if place in since}, {})

    def starting_offsets(self) -> dict[str, dict[str, int]]:
        """Return the next offset of each partition, in the form of Spark's startingOffsets.

        ``.option("startingOffsets", json.dumps(health.starting_offsets()))`` begins there.
        """
        with self._lock:
            self._acquire_all()
            found: dict[str, dict[str, int]] = {}
            for place, totals in sorted(self._totals.items()):
                found.setdefault(place.topic, {})[str(place.partition)] = totals.position
            return found

    def counts(self) -> list[Count]:
        """Return the totals of this instance's partitions in windows that have not expired."""
        with self._lock:
            return [
                count for place in sorted(self._totals) for count in self._totals[place].counts()
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
        for topic, numbers in () if isinstance(self._division, str) else self._division.items():
            count = self._changelog.partitions(topic)
            for number in set(numbers) - set(range(count)):
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
                    starts = self._starts([one.place for one in ranges])
                    if all(starts[one.place] <= one.since.offset for one in ranges):
                        raise
                else:
                    return self._commit(counted, {one.place: one.end for one in ranges})

    def _counted(self, ranges: Sequence[Range]) -> dict[TopicPartition, list[Added]]:
        """Count ranges in a Spark job."""
        counted = counted_ranges(self._session(), self._broker, ranges, self._rule)
        return added_by(counted.toArrow())

    def _acquire_all(self) -> None:
        """Acquire the partitions for a query of the user's, which reads them in any case."""
        if self._division == "shared":
            raise ConfigurationError(
                "a query of your own reads partitions that other instances may have: use "
                'partitions="all", or name them'
            )
        self._prepare()
        self._acquire()

    def _acquire(self) -> None:
        """Update which partitions are this instance's, and restore the totals of new ones."""
        places = [
            TopicPartition(topic, number)
            for topic in self._topics
            for number in range(self._changelog.partitions(topic))
        ]
        if self._owner is None:
            if self._merging is not None:
                sums = self._merging.follow(self._changelog)
                seed_all(self._sinks, sums)
                put_all(self._sinks, sums)
            shared = self._division == "shared"
            self._owner = (
                partition_owner(self._broker, self._changelog.job, self._topics)
                if shared
                else Fixed(None if isinstance(self._division, str) else self._division)
            )
        self._check_identities()
        owned = self._owner.owned(places)
        starts = self._starts(owned)
        for place, totals in list(self._totals.items()):
            # messages that were removed may have been counted elsewhere: restore from the topic
            if place not in owned or totals.position < starts[place]:
                del self._totals[place]
        new = sorted(owned - set(self._totals))
        passed = self._changelog.claim(new)
        for place, restored in restore(self._changelog, new, self._rule.expire).items():
            if self._merging is None:
                seed_all(self._sinks, restored.totals.counts())
                # its writer may have died before it could pass them to its sinks
                put_all(self._sinks, restored.last)
            if restored.totals.position < self._others.pop(place, 0):
                raise StateError(
                    f"{place.topic}-{place.partition}: the output topic has fewer counts than were "
                    "written to it; if it was deleted, use another application_id"
                )
            if restored.identity not in (None, self._identities[place.topic]):
                raise _made_anew(place.topic)
            self._begin(place, restored.totals, passed[place], starts[place])
            self._totals[place] = restored.totals

    def _check_identities(self) -> None:
        """Raise `StateError` if an input topic was deleted and created again while this ran."""
        for topic in self._topics:
            identity = self._changelog.identity(topic)
            if self._identities.setdefault(topic, identity) != identity:
                raise _made_anew(topic)

    def _begin(self, place: TopicPartition, totals: Totals, passed: int, start: int) -> None:
        """Set the position to the first message that exists; raise if messages were lost."""
        # messages before ``passed`` that are not in the totals were late, not lost
        reached = max(totals.position, passed)
        if 0 < reached < start:
            lost = (
                f"{place.topic}-{place.partition}: offsets {reached} to {start} were removed "
                "before they were counted"
            )
            if self._lost == "fail":
                raise StateError(f'{lost}; set lost="skip" to continue without them')
            _log.warning("%s", lost)
        totals.add((), position=start)

    def _begins(self, df: Any) -> bool:
        """Raise if the first batch leaves messages out; return whether it has any rows."""
        firsts = {place: at for place, at in first_offsets(df).items() if place in self._totals}
        gaps = [
            Range(place, self._totals[place].since, first)
            for place, first in sorted(firsts.items())
            if first > self._totals[place].position
        ]
        # a gap may hold no messages: control records of Kafka's transactions have offsets, too
        for place in sorted(self._counted(gaps) if gaps else ()):
            raise ConfigurationError(
                f"the query begins at offset {firsts[place]} of {place.topic}-{place.partition}, "
                f"but {self._totals[place].position} is the next to be counted; start it at "
                "starting_offsets()"
            )
        return bool(firsts)

    def _starts(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        topics = {place.topic for place in places}
        starts = {topic: self._changelog.start_offsets(topic) for topic in topics}
        return {place: starts[place.topic][place.partition] for place in places}

    def _ranges(self) -> list[Range]:
        ranges = []
        for topic in sorted({place.topic for place in self._totals}):
            ends = self._changelog.end_offsets(topic)
            for place, totals in sorted(self._totals.items()):
                if place.topic == topic and ends[place.partition] < totals.position:
                    raise _made_anew(topic)
                if place.topic == topic and ends[place.partition] > totals.position:
                    end = min(ends[place.partition], totals.position + self._max_records)
                    ranges.append(Range(place, totals.since, end))
        return ranges

    def _commit(
        self, counted: Mapping[TopicPartition, list[Added]], ends: Mapping[TopicPartition, int]
    ) -> int:
        """Add counts to the totals, write and publish what changed; return how many messages."""
        changes: dict[TopicPartition, list[Count]] = {}
        for place in sorted({*counted, *ends}):
            added = counted.get(place, ())
            changes[place] = self._totals[place].add(added, position=ends.get(place, 0))
        ends = {place: self._totals[place].position for place in changes}
        now = int(self._clock() * 1000)
        try:
            written = self._changelog.write(changes, now, ends) if changes else set()
        except BaseException:
            # the topic may not have what was added here: restore from it
            for place in changes:
                del self._totals[place]
            raise
        for place in (place for place in changes.keys() - written if changes[place]):
            # these changes were not written, so the next ones would leave a gap: restore
            _log.info("%s-%s: another instance is ahead", place.topic, place.partition)
            totals = [one.offset for one in changes[place] if one.value is not None]
            self._others[place] = max(totals, default=0)
            del self._totals[place]
        if self._merging is None:
            shown = [one for place in changes if place in written for one in changes[place]]
            put_all(self._sinks, [one for one in shown if one.value is not None])
        else:
            put_all(self._sinks, self._merging.follow(self._changelog))
        return sum(one.messages for found in counted.values() for one in found)

    def _ends(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(topic, number): end
            for topic in self._topics
            for number, end in self._changelog.end_offsets(topic).items()
        }

    def _reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._joined() and all(
                totals.position >= ends[place] for place, totals in self._totals.items()
            )

    def _joined(self) -> bool:
        return self._owner is not None and self._owner.joined

    def _release(self) -> None:
        self._totals.clear()
        if self._owner is not None:
            self._owner.close()
            self._owner = None
        for sink in self._sinks:
            if isinstance(sink, CountSink):
                sink.close()


def _made_anew(topic: str) -> StateError:
    return StateError(
        f"the topic {topic!r} is not the one that was counted: it was deleted and created again, "
        "or lost messages at its end; count it under another application_id and output"
    )


def _check_division(partitions: Division, topics: Sequence[str]) -> None:
    if isinstance(partitions, str):
        if partitions not in ("all", "shared"):
            raise ConfigurationError(
                f"partitions={partitions!r}: use 'all', 'shared' or {{topic: [numbers]}}"
            )
    elif unknown := sorted(set(partitions) - set(topics)):
        raise ConfigurationError(f"partitions: {unknown[0]!r} is not one of the topics {topics}")
