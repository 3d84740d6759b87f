"""What befalls a worker of Spark, once."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

__all__ = ["fail", "first_time", "kill", "struck_within"]

Passing: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def fail() -> None:
    raise OSError("once")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def first_time(flag: str) -> bool:
    """Tell that nobody has asked for this flag before, in whatever process."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def struck_within(flag: Path, fault: Callable[[], None], after: int) -> Passing:
    """Give what passes batches on, for ``mapInArrow``; after so many rows a fault, once."""
    struck = str(flag)

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in batches:
            seen += batch.num_rows
            if seen > after and first_time(struck):
                fault()
            yield batch

    return passing
