"""Run cases on the continuous host, in this process: many side by side, with restarts and crashes.

A crash ends the host without a commit and without closing anything, as a killed process would; the
next one fences it and goes on from what was committed.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conformance.runner import Verdict
from tests.conformance.spark import Case, _has_clock, _Run, run_on_spark
from thulawa.brokers.port import open_broker
from thulawa.core.serdes import Serdes
from thulawa.errors import ThulawaError
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.continuous.continuous_program import ContinuousProgram
from thulawa.spark.continuous.continuous_streams import (
    await_processed,
    build_program,
    check_alive,
    create_internal_topics,
)
from thulawa.spark.continuous.control_channel import HostStatus
from thulawa.spark.continuous.host import Host
from thulawa.spark.continuous.previous_run import check_previous_run, record_run

_SECONDS = 120.0


def run_continuously(cases: list[Case], *, seed: int = 0, partitions: int = 1) -> Iterator[Verdict]:
    """Run cases; give a verdict for each as soon as it is known."""
    return run_on_spark(cases, seed=seed, partitions=partitions, run=_ContinuousRun)


class ThreadHosts:
    """The hosts of a program as threads of this process."""

    def __init__(self, program: ContinuousProgram, clock: Any) -> None:
        self.program = program
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._hosts = [Host(program, number, clock=clock) for number in range(len(program.hosts))]
        self._threads = [
            threading.Thread(target=self._run, args=(host,), daemon=True) for host in self._hosts
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, host: Host) -> None:
        try:
            host.run()
        except BaseException as error:  # noqa: BLE001 raised by whoever waits
            self.error = error
            self.ended.set()

    def status(self) -> dict[int, HostStatus]:
        return {number: host.status for number, host in enumerate(self._hosts)}

    def stop(self) -> None:
        for host in self._hosts:
            host.stop()
        self._join()

    def cancel(self) -> None:
        for host in self._hosts:
            host.fail(ThulawaError("killed by the test"))
        self._join()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(_SECONDS)
            assert not thread.is_alive(), "a host does not end"


class _ContinuousRun(_Run):
    def _start(self) -> ThreadHosts:
        broker = open_broker(self._address)
        for prefix, case in self._cases.items():
            for node in case["outputs"]:
                broker.create_topic(f"{prefix}out-{node}", 1)
        program = build_program(
            self._topology,
            broker,
            application_id="conformance",
            options=TaskOptions(commit="record", max_ahead="100000 days"),
            hosts=lambda tasks: min(2, tasks),
            planning={"key_serde": Serdes.json(), "value_serde": Serdes.json()},
            commit_interval=0.01,
            state_dir=self._address.removeprefix("file:") + "-state",
            state_memory=20_000,  # a few entries of each store: the others are evicted
        )
        check_previous_run(program)
        create_internal_topics(program)
        record_run(program)
        clock = str(self._clock)
        hosts = ThreadHosts(program, lambda _: int(Path(clock).read_text(encoding="utf-8")))
        self._rounds(hosts)
        return hosts

    def _batches(self, case: Case) -> Iterator[list[int]]:
        """Feed several partitions one by one: their tasks run side by side, in any order."""
        if self._count(case) == 1:
            yield from super()._batches(case)
        else:
            yield from ([place] for place in range(len(case["inputs"])))

    def _stop(self, streams: ThreadHosts) -> None:
        if streams.error is not None:
            raise streams.error
        if self._draw.random() < 0.5:
            streams.cancel()
        else:
            streams.stop()
            if streams.error is not None:
                raise streams.error

    def _settle(self, streams: ThreadHosts) -> None:
        deadline = time.monotonic() + _SECONDS
        await_processed(streams.program, streams, deadline)
        if any(map(_has_clock, self._cases.values())):
            self._rounds(streams)
            await_processed(streams.program, streams, deadline)

    def _rounds(self, hosts: ThreadHosts) -> None:
        """Wait until every host has run and committed twice since now."""
        deadline = time.monotonic() + _SECONDS
        before = {number: one.rounds for number, one in hosts.status().items()}
        while any(one.rounds < before[number] + 20 for number, one in hosts.status().items()):
            check_alive(hosts.program, hosts, deadline)
            time.sleep(0.005)
