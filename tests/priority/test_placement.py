"""Writers put records into their buckets, stamp them, and agree with who wrote before them."""

from typing import Any

import pytest

from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import STAMP, Buckets
from thulawa.priority.placement import Placement, Placing

TWO = Buckets({"Platinum": 70, "Gold": 30})
OTHER = Buckets({"Platinum": 60, "Gold": 40})


def topic(*headers: list[tuple[str, Any]], partitions: int = 6) -> dict[int, list[Any]]:
    return {number: list(headers) if number == 5 else [] for number in range(partitions)}


def test_a_record_carries_the_stamp_of_where_it_is_and_of_nothing_else() -> None:
    placing = Placing(TWO, lambda _: topic())
    placed = placing("t", b"Gold-1", [OTHER.stamp, ("more", b"x"), TWO.stamp])
    assert placed == (TWO.partition("Gold-1", 6), [("more", b"x"), TWO.stamp])
    assert placing("t", b"Gold-1", None) == (TWO.partition("Gold-1", 6), [TWO.stamp])


def test_a_writer_is_refused_however_many_records_without_a_stamp_are_newer() -> None:
    placing = Placing(OTHER, lambda _: topic([TWO.stamp], [], [("more", b"x")]))
    with pytest.raises(ConfigurationError, match="another layout of buckets"):
        placing("t", b"Gold-1", None)


def test_what_counts_is_the_newest_stamp_of_a_partition() -> None:
    Placing(TWO, lambda _: topic([OTHER.stamp], [TWO.stamp], []))("t", b"Gold-1", None)
    Placing(TWO, lambda _: topic([OTHER.stamp, TWO.stamp]))("t", b"Gold-1", None)
    with pytest.raises(ConfigurationError, match="another layout of buckets"):
        Placing(TWO, lambda _: topic([TWO.stamp], [OTHER.stamp]))("t", b"Gold-1", None)


def test_a_topic_is_looked_at_once_and_again_when_it_is_to_be_forgotten() -> None:
    looked: list[str] = []

    def newest(name: str) -> dict[int, list[Any]]:
        looked.append(name)
        return topic(partitions=6 * len(looked))

    placing = Placing(TWO, newest)
    assert {placing("t", b"Gold-%d" % n, None)[0] for n in range(20)} == {4, 5}  # type: ignore[index]
    placing.expect("t", 6)
    assert looked == ["t"]
    placing.expect("t", 12)
    assert {placing("t", b"Gold-%d" % n, None)[0] for n in range(40)} == {8, 9, 10, 11}  # type: ignore[index]
    assert looked == ["t", "t"]


def test_records_of_unknown_buckets_are_dropped_and_counted() -> None:
    placing = Placing(Buckets({"Platinum": 70, "Gold": 30}, unknown="drop"), lambda _: topic())
    assert placing("t", b"Silver-1", None) is None
    assert placing.dropped == 1


def test_records_without_a_key_take_turns_in_their_bucket() -> None:
    placement = Placement(Buckets({"Platinum": 70, "Gold": 30}, default="Gold"), 6)
    assert sorted(placement(None) or 0 for _ in range(4)) == [4, 4, 5, 5]


def test_a_stamp_is_a_header_that_names_the_layout() -> None:
    assert TWO.stamp == (STAMP, TWO.fingerprint.encode())
