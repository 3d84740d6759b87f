"""Lane statistics: samples while an engine runs, and merging."""

import asyncio

from thulawa.engine import Engine, Lane, Lanes, Options, Outcome, WorkItem
from thulawa.engine.lane_sums import LaneSum, merge_lane_sums, sample_lanes, summarize_lanes
from thulawa.testing import simulate

TWO = Lanes(lanes=(Lane(name="urgent"), Lane(name="usual")))


class Records:
    """Twenty records of as many keys, every fourth of them urgent."""

    def __init__(self) -> None:
        self._left = [WorkItem(n, n, n, n, 0, 0 if n % 4 == 0 else 1) for n in range(20)]
        self.left = 0

    async def read(self, records: int, size: int) -> list[WorkItem]:
        taken, self._left = self._left[:records], self._left[records:]
        return taken

    async def put(self, outcomes: list[Outcome]) -> None:
        self.left += len(outcomes)


async def second(_: WorkItem) -> None:
    await asyncio.sleep(1)


def test_samples_of_a_run_are_what_happened_in_it() -> None:
    async def run(_: object) -> dict[str, LaneSum]:
        engine = Engine(second, Options(in_flight=2, lanes=TWO))
        async with engine, sample_lanes(engine) as first:
            await engine.run(Records(), Records())
        async with engine, sample_lanes(engine) as again:
            await engine.run(Records(), Records())
        return merge_lane_sums(first, again)

    seen = summarize_lanes(simulate(run, seed=0))
    assert list(seen) == ["urgent", "usual"]
    assert (seen["urgent"].done, seen["usual"].done) == (10, 30)
    assert seen["usual"].waiting in (13, 14, 15)
    assert seen["urgent"].in_flight + seen["usual"].in_flight in (2, 3, 4)
    assert 9 <= seen["usual"].residence.maximum <= 11
    assert 7 <= seen["usual"].oldest <= 9


def test_merged_sums_add_histograms_and_keep_the_highest_values() -> None:
    one, other = LaneSum({7: 1, 8: 2}, 5, 1, 0.5), LaneSum({8: 3}, 2, 4, 0.25)
    assert merge_lane_sums({"a": one}, {"a": other, "b": other}) == {
        "a": LaneSum({7: 1, 8: 5}, 5, 4, 0.5),
        "b": other,
    }
