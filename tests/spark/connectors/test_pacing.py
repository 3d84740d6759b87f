"""How far partitions are read ahead of each other: pure figures."""

from thulawa.core.types import TopicPartition
from thulawa.spark.connectors.pacing import Pace

A, B, C = (TopicPartition(topic, 0) for topic in "abc")


def test_the_earliest_is_read_without_a_bound_and_others_up_to_their_share() -> None:
    pace = Pace([[A, B]])
    assert pace.watched({A: 5, B: 5, C: 5}) == [A, B]
    assert pace.most({A: 0, B: 0}, {A: 100, B: 900}, 50) == {B: 50}
    assert pace.most({A: 50, B: 50}, {A: 150, B: 950}, 50) == {B: 0}
    assert pace.most({A: 900, B: 50}, {A: 960, B: 950}, 50) == {A: 40}, "ten of A wait"


def test_what_waits_is_estimated_between_the_times_that_are_known() -> None:
    pace = Pace([[A, B]])
    pace.most({A: 0, B: 0}, {A: 0, B: 0}, 100)
    # B has been read from time 0 to 1,000, A to 900: a tenth of B's records wait
    assert pace.most({A: 100, B: 100}, {A: 900, B: 1_000}, 100) == {B: 90}


def test_a_partition_that_has_nothing_to_wait_for_is_not_watched() -> None:
    pace = Pace([[A, B], [C]])
    assert pace.watched({A: 5, B: 0, C: 7}) == []
    assert pace.most({A: 0}, {A: 100}, 10) == {}
