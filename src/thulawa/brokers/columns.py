"""Columns of integers in Arrow; a range becomes one without a Python object for each number."""

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc


@lru_cache(maxsize=16)
def counting(count: int) -> pa.Array:
    """Return a column that counts from 0; nearly all batches are of one size."""
    return pa.array(range(count), pa.int64())


def int_column(numbers: Sequence[int]) -> pa.Array:
    """Return numbers as a column of 64-bit integers.

    >>> int_column(range(7, 10)).to_pylist(), int_column([7, 9]).to_pylist()
    ([7, 8, 9], [7, 9])
    """
    if isinstance(numbers, range) and numbers.step == 1:
        return pc.add(counting(len(numbers)), numbers.start)
    return pa.array(numbers, pa.int64())
