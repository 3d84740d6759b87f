"""The spelling of KIP-28 does what the names of today do."""

import pytest

from thulawa.errors import ConfigurationError
from thulawa.streams import JoinWindows, KStreamBuilder, StreamsBuilder, Topology, TopologyBuilder
from thulawa.testing import preview


def test_the_builders_are_the_same() -> None:
    assert KStreamBuilder is StreamsBuilder
    assert TopologyBuilder is Topology


def test_from_and_send_to_build_what_stream_and_to_build() -> None:
    old, new = KStreamBuilder(), StreamsBuilder()
    old.from_("in").send_to("out")
    new.stream("in").to("out")
    assert old.build().describe() == new.build().describe()


def test_a_windowed_stream_joins_with_older_records_only_when_asked() -> None:
    window = JoinWindows.of(10)
    records = [("two", "k", "older", 1), ("one", "k", "than-", 5), ("two", "k", "younger", 7)]
    joined = preview(
        lambda one, two: one.with_(window).join(two.with_(window), lambda a, b: a + b), *records
    )
    assert [value for _, value in joined] == ["than-older", "than-younger"]
    prior = preview(
        lambda one, two: one.with_(window).join_prior(two.with_(window), lambda a, b: a + b),
        *records,
    )
    assert [value for _, value in prior] == ["than-older", "than-younger"]


def test_records_of_equal_time_are_not_prior() -> None:
    window = JoinWindows.of(10)
    records = [("two", "k", "same", 5), ("one", "k", "time", 5)]
    assert preview(lambda one, two: one.join_prior(two, max, window), *records) == []


def test_different_windows_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="the same windows"):
        preview(
            lambda one, two: one.with_(JoinWindows.of(1)).join(two.with_(JoinWindows.of(2)), max)
        )
