"""Divide the record limit of a micro-batch between partitions: evenly, or by weights of groups.

Pure functions of the available records and the limit. What one partition does not use goes to the
others, so the sum is always the lesser of the limit and what is available.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

P = TypeVar("P", bound=Hashable)
G = TypeVar("G", bound=Hashable)


def evenly(available: Mapping[P, int], total: int) -> dict[P, int]:
    """Return the same number for each, as far as available; in O(n log n).

    >>> evenly({"a": 1, "b": 9, "c": 9}, 7)
    {'a': 1, 'b': 3, 'c': 3}
    """
    taken = dict.fromkeys(available, 0)
    left = total
    for place, name in enumerate(sorted(available, key=available.__getitem__)):
        taken[name] = min(available[name], left // (len(available) - place))
        left -= taken[name]
    return taken


def weighted(available: Mapping[G, int], total: int, weights: Mapping[G, float]) -> dict[G, int]:
    """Return a number for each group by its weight; unused parts go to the others by weight.

    A group with enough records gets at least its weighted part, rounded down, and at least one if
    ``total`` suffices: small weights never starve.

    >>> weighted({"Platinum": 5, "Gold": 900}, 100, {"Platinum": 70, "Gold": 30})
    {'Platinum': 5, 'Gold': 95}
    >>> weighted({"Platinum": 900, "Gold": 900}, 100, {"Platinum": 70, "Gold": 30})
    {'Platinum': 70, 'Gold': 30}
    """
    busy = sorted((name for name in available if available[name]), key=lambda n: -weights[n])
    taken = dict.fromkeys(available, 0)
    for name in busy[:total]:
        taken[name] = 1
    left = total - sum(taken.values())
    while left and (hungry := [name for name in busy if taken[name] < available[name]]):
        # parts are of the whole, so that the first record of each counts towards its part
        scale = (left + sum(taken[name] for name in hungry)) / sum(weights[name] for name in hungry)
        wanted = {name: int(scale * weights[name]) - taken[name] for name in hungry}
        moved = 0
        for name in hungry:
            more = max(0, min(wanted[name], available[name] - taken[name], left - moved))
            taken[name] += more
            moved += more
        if not moved:  # less than one each is left: the largest fractions are served
            for name in sorted(hungry, key=lambda n: taken[n] - scale * weights[n])[:left]:
                taken[name] += 1
                moved += 1
        left -= moved
    return taken


def in_turn(available: Mapping[G, int], total: int, order: Sequence[G]) -> dict[G, int]:
    """Return all of the first group, then of the next, as far as ``total`` suffices.

    >>> in_turn({"Platinum": 5, "Gold": 900}, 100, ["Platinum", "Gold"])
    {'Platinum': 5, 'Gold': 95}
    """
    taken = {}
    for name in order:
        if name in available:
            taken[name] = min(available[name], total)
            total -= taken[name]
    return taken


def grouped(
    available: Mapping[P, int],
    total: int,
    groups: Mapping[P, G],
    split: Callable[[Mapping[G, int], int], Mapping[G, int]],
) -> dict[P, int]:
    """Divide between groups by ``split``, and evenly inside each group.

    >>> grouped({0: 9, 1: 9, 2: 9}, 10, {0: "a", 1: "a", 2: "b"}, evenly)
    {0: 2, 1: 3, 2: 5}
    """
    members: dict[G, dict[P, int]] = {}
    for place, count in available.items():
        members.setdefault(groups[place], {})[place] = count
    parts = split({name: sum(places.values()) for name, places in members.items()}, total)
    taken: dict[P, int] = {}
    for name, places in members.items():
        taken |= evenly(places, parts[name])
    return taken
