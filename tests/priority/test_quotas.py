"""A trigger's records are shared out by weight, nothing is left that could be taken."""

from hypothesis import given
from hypothesis import strategies as st

from thulawa.priority.quotas import evenly, in_turn, weighted

counts = st.one_of(st.integers(0, 20), st.integers(0, 100_000))
groups = st.dictionaries(st.sampled_from("abcdef"), counts, min_size=1)
totals = st.one_of(st.integers(0, 20), st.integers(0, 300_000))


def exhausts(taken: dict[str, int], available: dict[str, int], total: int) -> None:
    assert taken.keys() == available.keys()
    assert all(0 <= taken[name] <= available[name] for name in available)
    assert sum(taken.values()) == min(total, sum(available.values()))


@given(groups, totals)
def test_an_even_split_takes_as_much_from_each_that_has_it(
    available: dict[str, int], total: int
) -> None:
    taken = evenly(available, total)
    exhausts(taken, available, total)
    most = max(taken.values())
    short = [name for name in available if taken[name] < available[name]]
    assert all(taken[name] >= most - 1 for name in short)


@given(groups, totals, st.data())
def test_a_weighted_split_gives_each_group_its_part_and_the_rest_to_those_who_have_more(
    available: dict[str, int], total: int, data: st.DataObject
) -> None:
    weights = {name: data.draw(st.integers(1, 100), name) for name in available}
    taken = weighted(available, total, weights)
    exhausts(taken, available, total)
    busy = [name for name in available if available[name]]
    if total >= len(busy):
        assert all(taken[name] for name in busy), "nobody who has records is left out"
    everything = sum(weights[name] for name in busy)
    for name in busy:
        part = total * weights[name] // everything
        # the first record of each may come from the part of another
        assert taken[name] >= min(available[name], part) - (len(busy) - 1)


@given(st.integers(1, 10_000), st.data())
def test_while_all_have_plenty_the_split_is_by_weight_to_the_record(
    total: int, data: st.DataObject
) -> None:
    shares = data.draw(st.lists(st.integers(1, 100), min_size=1, max_size=6))
    weights = dict(enumerate(shares))
    taken = weighted(dict.fromkeys(weights, total), total, weights)
    if total >= sum(shares):  # everybody's part is at least one
        for name, weight in weights.items():
            assert abs(taken[name] - total * weight / sum(shares)) < 1


@given(groups, totals)
def test_strictly_a_group_is_served_only_when_those_before_it_are_empty(
    available: dict[str, int], total: int
) -> None:
    order = sorted(available)
    taken = in_turn(available, total, order)
    exhausts(taken, available, total)
    for place, name in enumerate(order):
        if taken[name]:
            assert all(taken[before] == available[before] for before in order[:place])
