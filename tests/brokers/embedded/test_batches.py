"""Packing records: what goes in comes out, and damage never does."""

from itertools import accumulate
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thulawa.brokers.embedded.batches import Columns, pack, span, unpack
from thulawa.errors import DamagedLog

Rows: TypeAlias = list[tuple[int, int, bytes | None, bytes | None, object]]

data = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), data), max_size=3).map(tuple)
rows = st.lists(
    st.tuples(st.integers(1, 2**33), st.integers(0, 2**63 - 1), data, data, headers),
    min_size=1,
    max_size=30,
)


def columns_of(drawn: Rows) -> Columns:
    steps, *rest = zip(*drawn, strict=True)
    return Columns(tuple(accumulate(steps)), *rest)


def as_rows(columns: Columns) -> list[tuple[object, ...]]:
    parts = columns.offsets, columns.timestamps, columns.keys, columns.values, columns.headers
    return list(zip(*parts, strict=True))


@given(rows)
def test_what_is_packed_comes_out_again(drawn: Rows) -> None:
    columns = columns_of(drawn)
    assert as_rows(unpack(pack(columns), columns.offsets[0])) == as_rows(columns)


@given(rows)
def test_a_batch_tells_where_it_ends_without_being_opened(drawn: Rows) -> None:
    columns = columns_of(drawn)
    end = columns.offsets[-1] + 1, max(columns.timestamps)
    assert span(pack(columns), columns.offsets[0]) == end


@given(st.integers(1, 50), st.integers(0, 2**40))
def test_a_batch_without_gaps_stands_wherever_it_is_put(count: int, first: int) -> None:
    none = (None,) * count
    packed = pack(Columns(range(count), (7,) * count, none, none, ((),) * count))
    assert unpack(packed, first).offsets == range(first, first + count)


@given(rows, st.data())
def test_a_changed_byte_is_found(drawn: Rows, draw: st.DataObject) -> None:
    blob = bytearray(pack(columns_of(drawn)))
    at = draw.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(DamagedLog):
        unpack(bytes(blob), 0)


@given(rows, st.data())
def test_a_cut_batch_is_found(drawn: Rows, draw: st.DataObject) -> None:
    blob = pack(columns_of(drawn))
    with pytest.raises(DamagedLog):
        unpack(blob[: draw.draw(st.integers(0, len(blob) - 1))], 0)


@given(rows, st.data())
def test_between_gives_the_offsets_of_a_half_open_range(drawn: Rows, draw: st.DataObject) -> None:
    columns = columns_of(drawn)
    near = st.sampled_from(columns.offsets).flatmap(lambda at: st.integers(at - 1, at + 1))
    start, end = sorted((draw.draw(near), draw.draw(near)))
    wanted = [row for row in as_rows(columns) if start <= int(str(row[0])) < end]
    assert as_rows(columns.between(start, end)) == wanted
