"""The Spark job of a continuous application: one long-running Spark task for each host."""

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from thulawa.errors import ConfigurationError, QueryFailed
from thulawa.spark.continuous.continuous_program import ContinuousProgram
from thulawa.spark.continuous.control_channel import (
    ControlAddress,
    ControlClient,
    ControlServer,
    HostStatus,
)
from thulawa.spark.continuous.host import Host

# the last line of a Python traceback: the error's class and message
_RAISED = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Fenced|Failed|[A-Z]\w*): ")


class SparkJob:
    """Runs the hosts of a program as the tasks of one job, on a thread of the driver."""

    def __init__(
        self, spark: Any, program: ContinuousProgram, clock: Callable[[int], int] | None
    ) -> None:
        context = spark.sparkContext
        self._context = context
        self._program = program
        self._clock = clock
        self._group = f"thulawa-{program.application_id}-{uuid4().hex[:8]}"
        self.control = ControlServer(context.getConf().get("spark.driver.host", "127.0.0.1"))
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self._group, daemon=True)
        self._thread.start()

    def status(self) -> dict[int, HostStatus]:
        """Return the last status of each host."""
        return self.control.status()

    def stop(self) -> None:
        """Ask the hosts to finish, commit and end."""
        self.control.stop_hosts()

    def cancel(self) -> None:
        """End the job without finishing what is in flight."""
        self.control.close()
        self._context.cancelJobGroup(self._group)

    def _run(self) -> None:
        program, clock, address = self._program, self._clock, self.control.address

        def run(hosts: Iterator[int]) -> Iterator[int]:
            for number in hosts:
                run_host(program, number, clock, address)
                yield number

        context, count = self._context, len(program.hosts)
        try:
            context.setJobGroup(
                self._group, f"{program.application_id}: continuous", interruptOnCancel=True
            )
            context.parallelize(range(count), count).mapPartitions(run).collect()
        except BaseException as error:  # noqa: BLE001 reported by the application
            self.error = error
        finally:
            self.control.close()
            self.ended.set()


def run_host(
    program: ContinuousProgram,
    number: int,
    clock: Callable[[int], int] | None,
    address: ControlAddress,
) -> None:
    """Run a host in a Python worker until the driver says stop, or is gone."""
    host = Host(program, number, clock=clock)
    control = ControlClient(
        address, number, status=lambda: host.status, stop=host.stop, lost=host.fail
    )
    try:
        host.run()
    finally:
        control.close()


def host_count(spark: Any, tasks: int, parallelism: int | None) -> int:
    """Return the number of hosts; raise `ConfigurationError` if Spark has fewer slots."""
    slots: int = spark.sparkContext.defaultParallelism
    if parallelism is None:
        return max(1, min(tasks, slots))
    if parallelism > slots:
        raise ConfigurationError(
            f"parallelism={parallelism} needs as many free cores, and Spark has {slots}; lower "
            "parallelism, or give Spark more cores (local[N], --total-executor-cores)"
        )
    return min(tasks, parallelism)


def as_query_failed(application_id: str, error: BaseException | None) -> QueryFailed:
    """Return the error of a job as `QueryFailed`; the message has the line of its cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if _RAISED.match(line)]
    failed = QueryFailed(
        f"{application_id}: {(causes or lines or ['the job has ended'])[-1][:1_000]}"
    )
    failed.__cause__ = error
    return failed
