"""Partitions are grouped by urgency, each in one bucket, and keys stay in their partition."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thulawa.errors import ConfigurationError, UnknownBucket
from thulawa.priority.buckets import Buckets

TWO = Buckets({"Platinum": 70, "Gold": 30}, delimiter="-")


@st.composite
def allocations(draw: st.DrawFn) -> dict[str, int]:
    count = draw(st.integers(1, 8))
    cuts = sorted(draw(st.sets(st.integers(1, 99), min_size=count - 1, max_size=count - 1)))
    shares = [end - start for start, end in zip([0, *cuts], [*cuts, 100], strict=True)]
    return {f"b{number}": share for number, share in enumerate(shares)}


def test_the_example_of_the_pattern() -> None:
    assert TWO.layout(6) == {"Platinum": [0, 1, 2, 3], "Gold": [4, 5]}
    assert {name: len(places) for name, places in TWO.layout(12).items()} == {
        "Platinum": 8,
        "Gold": 4,
    }
    assert {TWO.partition(f"Platinum-{n}", 6) for n in range(100)} == {0, 1, 2, 3}
    assert {TWO.partition(f"Gold-{n}", 6) for n in range(100)} == {4, 5}


def test_five_members_on_four_partitions_leave_one_idle() -> None:
    members = {f"p{n}": "Platinum" for n in range(5)} | {"g0": "Gold"}
    assigned = TWO.assign_members(6, members)
    assert sorted(map(len, (assigned[f"p{n}"] for n in range(5)))) == [0, 1, 1, 1, 1]
    assert assigned["g0"] == [4, 5]


@given(allocations(), st.integers(1, 60))
def test_any_layout_gives_each_partition_to_one_bucket_by_its_share(
    shares: dict[str, int], partitions: int
) -> None:
    buckets = Buckets(shares)
    if partitions < len(shares):
        with pytest.raises(ConfigurationError, match="too few"):
            buckets.layout(partitions)
        return
    layout = buckets.layout(partitions)
    assert sorted(place for places in layout.values() for place in places) == [*range(partitions)]
    assert all(layout.values())
    by_another_name = Buckets({f"{name} too": share for name, share in shares.items()})
    assert [*by_another_name.layout(partitions).values()] == [*layout.values()]
    exact = {name: partitions * share / 100 for name, share in shares.items()}
    if all(share >= 1 for share in exact.values()):
        assert all(abs(len(layout[name]) - exact[name]) < 1 for name in shares)


@given(allocations(), st.integers(8, 40), st.data())
def test_every_partition_is_read_by_exactly_one_member(
    shares: dict[str, int], partitions: int, data: st.DataObject
) -> None:
    buckets = Buckets(shares)
    names = st.sampled_from(buckets.names)
    members = data.draw(st.dictionaries(st.text("abc", min_size=1), names, min_size=1))
    assigned = buckets.assign_members(partitions, members)
    assert sorted(place for places in assigned.values() for place in places) == [*range(partitions)]


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.binary(), st.integers(2, 30))
def test_a_key_has_one_partition_in_its_bucket(key: str | bytes, partitions: int) -> None:
    buckets = Buckets({"Platinum": 70, "Gold": 30}, default="Gold")
    place = buckets.partition(key, partitions)
    bucket = buckets.bucket(key)
    assert bucket is not None
    assert place in buckets.layout(partitions)[bucket]
    data = key.encode() if isinstance(key, str) else key
    for same in (data, bytearray(data), memoryview(data)):
        assert buckets.partition(same, partitions) == place


@pytest.mark.parametrize("key", ["Silver-1", "", None, 7, "Platinum_1"])
def test_an_unknown_bucket_gets_what_was_chosen(key: Any) -> None:
    shares = {"Platinum": 70, "Gold": 30}
    with pytest.raises(UnknownBucket, match="and the buckets are"):
        TWO.bucket(key)
    assert Buckets(shares, default="Gold").bucket(key) == "Gold"
    assert Buckets(shares, unknown="drop").partition(key, 6) is None
    assert Buckets(shares, unknown="spread").partition(key, 6) in range(6)


def test_a_delimiter_is_literal_and_names_are_trimmed() -> None:
    assert Buckets({"a": 50, "b": 50}, delimiter="|").bucket("b |x|y") == "b"
    assert Buckets({"a": 50, "b": 50}).bucket("b") == "b"


@pytest.mark.parametrize("key", ["xyzb", b"xyzb", bytearray(b"xyzb"), memoryview(b"xyzb")])
@pytest.mark.parametrize("text", [True, False])
def test_a_function_is_given_the_key_as_bytes_whoever_writes(key: Any, text: bool) -> None:  # noqa: FBT001 a parameter of the table
    def last(key: bytes) -> str | bytes:
        return key[-1:].decode() if text else key[-1:]

    buckets = Buckets({"a": 50, "b": 50}, bucket_of=last)
    assert buckets.bucket(key) == "b"
    assert buckets.partition(key, 6) == buckets.partition("xyzb", 6)
    assert buckets.fingerprint != Buckets({"a": 50, "b": 50}).fingerprint
    buckets.check(Buckets({"a": 50, "b": 50}, bucket_of=len).fingerprint)  # type: ignore[arg-type]


def test_a_function_that_names_no_bucket_but_a_number_is_told_so() -> None:
    buckets = Buckets({"a": 50, "b": 50}, bucket_of=len, unknown="drop")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="bucket_of gave 4"):
        buckets.bucket("xyzb")


def test_buckets_can_be_in_a_set_and_name_one_layout_to_accept() -> None:
    assert len({TWO, Buckets({"Platinum": 70, "Gold": 30})}) == 1
    earlier = Buckets({"Platinum": 60, "Gold": 40})
    Buckets({"a": 100}, accepts=earlier.fingerprint).check(earlier.fingerprint)


def test_sides_that_disagree_are_told() -> None:
    TWO.check(Buckets({"Gold": 30, "Platinum": 70}).fingerprint)
    with pytest.raises(ConfigurationError, match="another layout of buckets"):
        TWO.check(Buckets({"Platinum": 60, "Gold": 40}).fingerprint)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"shares": {}}, "at least one"),
        ({"shares": {"a": 50, "b": 40}}, "sum to 90"),
        ({"shares": [("a", 50), ("a", 50)]}, "two buckets 'a'"),
        ({"shares": {"a": 99.5, "b": 0.5}}, "whole percentage"),
        ({"shares": {"a": 100, "b": 0}}, "at least 1"),
        ({"shares": {" ": 100}}, "no name"),
        ({"shares": {"a": 100}, "delimiter": ""}, "delimiter"),
        ({"shares": {"a": 100}, "default": "b"}, "none of the buckets"),
        ({"shares": {"a": 100}, "default": "a", "unknown": "drop"}, "not both"),
        ({"shares": {"a": 100}, "unknown": "guess"}, "not known"),
        ({"shares": None}, "shares are"),
        ({"shares": ["Platinum", "Gold"]}, "shares are"),
        ({"shares": 7}, "shares are"),
        ({"shares": {"a": 100}, "delimiter": b"-"}, "delimiter"),
        ({"shares": {"Extra-Gold": 70, "Gold": 30}}, "holds the delimiter"),
    ],
    ids=range(15),
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Buckets(**arguments)


@pytest.mark.parametrize("count", ["6", 6.5, None, 0, -1, True])
def test_a_number_of_partitions_is_a_whole_one(count: Any) -> None:
    with pytest.raises(ConfigurationError, match="partitions"):
        Buckets({"a": 100}).layout(count)


@pytest.mark.parametrize("text", ['{"shares": {"a": 100}}', "[]", "7", '{"shares": [["a", 1]]}'])
def test_a_text_that_describes_no_buckets_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Buckets.of(text)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: Buckets({"a": 100}, bucket_of=3), "bucket_of is a function"),  # type: ignore[arg-type]
        (lambda: Buckets({"a": 100}, accepts=(3,)), "accepts are fingerprints"),  # type: ignore[arg-type]
        (lambda: Buckets({"a": 100}).assign(6, cores=None), "None is no number of cores"),  # type: ignore[arg-type]
        (lambda: Buckets.of({"a": 100}), "is no Buckets"),  # type: ignore[arg-type]
        (lambda: Buckets({"a": 100}, default="a").partition("\ud800", 6), "cannot be written"),
        (lambda: Buckets({"a": 100}).bucket(5), "neither text nor bytes"),
    ],
)
def test_what_is_none_of_ours_is_refused_with_the_reason(
    made: Callable[[], object], reason: str
) -> None:
    with pytest.raises((ConfigurationError, UnknownBucket), match=reason):
        made()
