"""What befalls a worker of Spark, once."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

__all__ = ["fail", "kill", "struck_within"]

Passing: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def fail() -> None:
    raise OSError("once")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def struck_within(flag: Path, fault: Callable[[], None], after: int) -> Passing:
    """Give what passes keys and values on, for ``mapInArrow``; after so many rows a fault, once."""
    struck = str(flag)

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in batches:
            seen += batch.num_rows
            if seen > after and not os.path.exists(struck):  # noqa: PTH110 once
                os.close(os.open(struck, os.O_CREAT))
                fault()
            yield batch.select(["key", "value"])

    return passing
