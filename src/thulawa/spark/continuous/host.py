"""The host: runs some of an application's stream tasks for as long as the application lives.

Its concerns are apart. A *poll thread* reads the partitions of all tasks and pauses those with
enough buffered records. The *processing loop*, a coroutine, runs the task with the most buffered
records. Engines make the calls of async nodes on the same event loop; commits do not wait for
them. A *commit* sends the changes of stores and the progress of all tasks, and makes everything
that was sent since the last one visible in one transaction; results of calls wait meanwhile.

Everything but the poll thread and the broker's part of a commit runs on the event loop's thread, so
tasks and producer need no locks.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from thulawa.brokers.port import PolledRecords, read_partition
from thulawa.core.types import Offsets, ProducerRecord, TopicPartition
from thulawa.engine.workers import new_event_loop
from thulawa.runtime.global_tables import GlobalTables
from thulawa.spark.continuous.continuous_program import ContinuousProgram, TaskId
from thulawa.spark.continuous.control_channel import HostStatus
from thulawa.spark.continuous.local_state import HostState, LocalState
from thulawa.spark.continuous.poll_thread import PollThread
from thulawa.spark.continuous.previous_run import check_run
from thulawa.spark.continuous.record_collector import RecordCollector, TopicLimits
from thulawa.spark.continuous.stream_task import StreamTask, TaskProgress

_BUFFERED_RECORDS = 10_000  # of one partition; above it the partition is not read
_IDLE_SECONDS = 0.1  # longest wait without a look at the clock
_DELETION_SECONDS = 30.0  # between deletions of what was read of repartition topics


class Host:
    """Runs the tasks of one Spark task until it is stopped.

    ``clock`` returns the wall-clock time for the machine's, in milliseconds; for tests. `stop` and
    `fail` may be called from any thread.
    """

    def __init__(
        self,
        program: ContinuousProgram,
        number: int,
        *,
        clock: Callable[[int], int] | None = None,
    ) -> None:
        self._program = program
        self._number = number
        self._custom_clock = clock
        self.status = HostStatus(number, global_positions={}, restoring={})
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._tasks: list[StreamTask] = []
        self._readers: dict[TopicPartition, StreamTask] = {}
        self._global_partitions: set[TopicPartition] = set()
        self._state = HostState(program)
        self._serving: list[asyncio.Task[None]] = []
        self._next_deletion = time.monotonic() + _DELETION_SECONDS

    def run(self) -> HostStatus:
        """Run until `stop` is called, or raise what went wrong."""
        loop = self._loop = new_event_loop()
        try:
            loop.run_until_complete(self._run())
        finally:
            loop.close()
        return self.status

    def stop(self) -> None:
        """Finish what is in flight, commit and return from `run`."""
        self._stop.set()
        self._notify()

    def fail(self, error: BaseException) -> None:
        """Raise an error from `run`, without another commit; the first one counts."""
        if self._failure is None:
            self._failure = error
        self.stop()

    def _clock(self) -> int:
        now = time.time_ns() // 1_000_000
        return now if self._custom_clock is None else self._custom_clock(now)

    def _notify(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    async def _run(self) -> None:
        program = self._program
        self._wake = asyncio.Event()
        self._outputs = asyncio.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="thulawa-commit")
        # first: it fences an earlier attempt, whose transaction ends with that
        self._producer = program.broker.stream_producer(
            program.transactional_id(self._number), timeout=program.transaction_timeout
        )
        poll_thread: PollThread | None = None
        serving: list[asyncio.Task[None]] = []
        try:
            check_run(program)  # after the producer: a later start fences it
            positions = await self._restore()
            if self._stop.is_set():
                self._raise_failed()
                return  # stopped before everything was restored
            poll_thread = PollThread(program.broker.stream_consumer(positions), self._notify)
            for task in self._tasks:
                serving += [
                    asyncio.ensure_future(
                        node.serve(self._outputs, partial(self._pass_results, task), self.fail)
                    )
                    for node in task.task.async_nodes
                ]
            self.status.running = True
            self._serving = serving
            await self._process(poll_thread)
            self._raise_failed()
            await self._finish()
        finally:
            if poll_thread is not None:
                poll_thread.stop()
            for one in serving:
                one.cancel()
            if serving:
                await asyncio.wait(serving)
            for task in self._tasks:
                task.close()
            self._state.close()
            self._producer.close()
            self._pool.shutdown(wait=False)

    # --- start

    async def _restore(self) -> dict[TopicPartition, int]:
        """Create the tasks and restore their stores; return where to read from."""
        program, limits = self._program, TopicLimits(self._program.broker)
        positions = self._read_global_tables(limits)
        for task_id in program.hosts[self._number]:
            progress = _last_progress(program, task_id)
            collector = RecordCollector(program, self._producer, limits)
            state = self._state.open(task_id)
            await self._restore_stores(task_id, state)
            if self._stop.is_set():
                break
            task = StreamTask(
                program,
                task_id,
                collector,
                self._globals.stores,
                progress=progress,
                state=state,
                now=self._clock(),
            )
            task.open()
            starts = program.broker.start_offsets(*{place.topic for place in task.partitions})
            for place in task.partitions:
                first = progress.first_offset(place)
                positions[place] = starts[place.topic][place.partition] if first is None else first
                self._readers[place] = task
            task.start_at(positions)
            self._tasks.append(task)
        return positions

    async def _restore_stores(self, task: TaskId, state: LocalState) -> None:
        """Restore the stores of a task on the thread of commits, while the host can be stopped."""
        known = self.status.restoring

        def progress(store: str, restored: int, total: int) -> None:
            known[f"{task}/{store}"] = restored, total

        run = asyncio.get_running_loop().run_in_executor
        self.status.restored += await run(self._pool, state.restore, progress, self._stop.is_set)

    def _read_global_tables(self, limits: TopicLimits) -> dict[TopicPartition, int]:
        """Read global topics to their ends, before the first record of any other topic."""
        program = self._program
        letters = RecordCollector(program, self._producer, limits)
        self._globals = GlobalTables(program.plan.topology, program.options, self._send_letter)
        self._letters = letters.send
        known = program.broker.committed(program.application_id, self._globals.topics).offsets
        positions = {}
        for topic in self._globals.topics:
            for number, end in program.broker.end_offsets(topic)[topic].items():
                place = TopicPartition(topic, number)
                for record in read_partition(program.broker, place):
                    # every host reads them, at every start: one writes dead letters, once
                    written = record.offset < known.get(topic, {}).get(number, 0)
                    self._writes_letters = self._number == 0 and not written
                    self._globals.update(
                        topic, record.offset, record.key, record.value, record.timestamp
                    )
                    end = max(end, record.offset + 1)  # noqa: PLW2901 written meanwhile
                positions[place] = end
                self._set_global_position(place, end)
        self._writes_letters = self._number == 0
        self._global_partitions = set(positions)
        return positions

    def _send_letter(self, *record: Any) -> None:
        if self._writes_letters:
            self._letters(*record)

    # --- the processing loop

    def _raise_failed(self) -> None:
        if self._failure is not None:
            raise self._failure
        for one in self._serving:
            if one.done():
                one.result()

    async def _process(self, poll_thread: PollThread) -> None:
        assert self._wake is not None
        due = time.monotonic() + self._program.commit_interval
        busy = True
        while not self._stop.is_set():
            self._wake.clear()
            for polled in poll_thread.take():
                self._add(polled)
            waiting = not busy and not any(task.in_flight for task in self._tasks)
            poll_thread.set_full(self._full(poll_thread.full), waiting=waiting)
            self._raise_failed()
            async with self._outputs:
                busy = self._run_tasks()
                self._producer.dispatch()
            if time.monotonic() >= due:
                await self._commit()
                due = time.monotonic() + self._program.commit_interval
            self.status.rounds += 1
            if busy:
                await asyncio.sleep(0)
            else:
                await self._wait(due)

    def _pass_results(self, task: StreamTask) -> None:
        """Process the results of calls, and send at once what comes of them."""
        task.pass_results()
        self._producer.dispatch()

    async def _wait(self, due: float) -> None:
        assert self._wake is not None
        timeout = max(0.0, min(due - time.monotonic(), self._until_punctuation()))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()

    def _until_punctuation(self) -> float:
        dues = [due for task in self._tasks if (due := task.task.next_wall_clock_time) is not None]
        return (min(dues) - self._clock()) / 1_000 if dues else _IDLE_SECONDS

    def _add(self, polled: PolledRecords) -> None:
        if polled.partition in self._global_partitions:
            rows = zip(polled.offsets, polled.timestamps, polled.keys, polled.values, strict=True)
            for offset, timestamp, key, value in rows:
                self._globals.update(polled.partition.topic, offset, key, value, timestamp)
            self._set_global_position(polled.partition, polled.next_offset)
        else:
            self._readers[polled.partition].add(polled)

    def _set_global_position(self, place: TopicPartition, offset: int) -> None:
        self.status.global_positions.setdefault(place.topic, {})[place.partition] = offset

    def _full(self, before: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions with enough buffered records; a full one is so until half empty."""
        full: set[TopicPartition] = set()
        for task in self._tasks:
            if task.buffered() > _BUFFERED_RECORDS // 2:
                full.update(task.full_partitions(_BUFFERED_RECORDS))
                full.update(before.intersection(task.full_partitions(_BUFFERED_RECORDS // 2)))
        return frozenset(full)

    def _run_tasks(self) -> bool:
        """Run the tasks, those with the most buffered records first; return whether any ran."""
        now, busy = self._clock(), False
        for task in sorted(self._tasks, key=StreamTask.buffered, reverse=True):
            until = time.monotonic() + self._program.commit_interval
            busy = task.process(now, partial(_is_past, until)) or busy
        return busy

    # --- commits

    async def _commit(self) -> None:
        """Commit what all tasks have done, without waiting for calls that are in flight."""
        for task in self._tasks:
            if task.settles:
                await self._settle(task)
        async with self._outputs:
            self._raise_failed()
            now = self._clock()
            offsets: Offsets = {}
            progress = []
            for task in self._tasks:
                found = task.commit(self._producer, now)
                if found is not None:
                    progress.append(found.progress)
                    for topic, at in found.offsets.items():
                        offsets.setdefault(topic, {}).update(at)
            if not progress and not self._producer.pending:
                return
            if self._number == 0:
                offsets |= self.status.global_positions
            await asyncio.get_running_loop().run_in_executor(
                self._pool, self._commit_at_broker, offsets, progress
            )
            self._state.evict()
            self.status.commits += 1

    def _commit_at_broker(self, offsets: Offsets, progress: list[ProducerRecord]) -> None:
        program = self._program
        self._state.before_commit()
        self._producer.commit(program.application_id, offsets, (program.progress_topic, progress))
        self._state.after_commit()
        if time.monotonic() >= self._next_deletion:
            self._next_deletion = time.monotonic() + _DELETION_SECONDS
            internal = program.internal_topics()
            read = {topic: at for topic, at in offsets.items() if topic in internal}
            if read:  # nobody else reads them
                program.broker.delete_records(read)

    async def _settle(self, task: StreamTask) -> None:
        """Flush the caches of a task and wait until nothing of it is in flight."""
        while True:
            async with self._outputs:
                task.flush()
            if not task.in_flight:
                return
            while task.in_flight:
                self._raise_failed()
                await asyncio.sleep(0.001)

    async def _finish(self) -> None:
        """Wait for the calls in flight, and commit."""
        for task in self._tasks:
            await self._settle(task)
        self._state.write_next()
        await self._commit()
        for task in self._tasks:
            for node in task.task.async_nodes:
                node.finish()
        await asyncio.gather(*self._serving)


def _is_past(until: float) -> bool:
    return time.monotonic() > until


def _last_progress(program: ContinuousProgram, task: TaskId) -> TaskProgress:
    partition = TopicPartition(program.progress_topic, program.progress_partition(task))
    found = [record.value for record in read_partition(program.broker, partition)]
    return TaskProgress() if not found or found[-1] is None else TaskProgress.decode(found[-1])
