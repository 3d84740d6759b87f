"""Records read as Arrow columns are the records that were written."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.embedded.arrow import read_arrow, unpack_arrow
from thulawa.brokers.embedded.batches import Columns, pack
from thulawa.errors import DamagedLog

bytes_or_none = st.none() | st.binary(max_size=20)
rows = st.lists(
    st.tuples(st.integers(0, 2**62), bytes_or_none, bytes_or_none, st.booleans()),
    min_size=1,
    max_size=50,
)


@given(rows=rows, first=st.integers(0, 2**39), gap=st.integers(0, 3))
def test_a_packed_batch_is_the_same_in_arrow(
    rows: list[tuple[int, bytes | None, bytes | None, bool]], first: int, gap: int
) -> None:
    offsets = [first + place * (gap + 1) for place in range(len(rows))]
    headers = [(("name", b"x"),) if has else () for *_, has in rows]
    times, keys, values = (
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
    )
    batch = unpack_arrow(pack(Columns(offsets, times, keys, values, headers)), first)
    batch.validate(full=True)
    assert batch.to_pydict() == {
        "offset": offsets, "timestamp": times, "key": keys, "value": values,
    }  # fmt: skip


def test_a_damaged_batch_is_refused() -> None:
    blob = bytearray(pack(Columns([0], [1], [b"k"], [b"v"], [()])))
    blob[-1] ^= 1
    with pytest.raises(DamagedLog):
        unpack_arrow(bytes(blob), 0)


def test_a_range_begins_and_ends_inside_batches(tmp_path: Path) -> None:
    with Log(f"file:{tmp_path}/topics") as log:
        log.create_topic("numbers")
        for batch in range(3):
            log.append(
                {"numbers": [ProducerRecord(None, b"%d" % (batch * 10 + n)) for n in range(10)]}
            )
        read = [v for one in read_arrow(log, "numbers", 0, 5, 25) for v in one["value"].to_pylist()]
        assert read == [b"%d" % number for number in range(5, 25)]
        assert list(read_arrow(log, "numbers", 0, 30, 30)) == []
