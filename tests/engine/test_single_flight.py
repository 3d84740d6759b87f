"""Equal requests share a call, in flight and through the cache, and the order holds."""

from typing import Any

import pytest
from cachetools import LRUCache

from tests.engine.model_driver import Drive, drive
from thulawa.engine.events import Arrived, Emit, Start, Succeeded, Tick
from thulawa.engine.options import Batch, Options, Quarantine, Retry, SingleFlight
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.single_flight import MISSING, SingleFlightGroup
from thulawa.engine.work_items import WorkItem
from thulawa.errors import (
    Quarantined,
    Terminal,
    WrongResult,
)

BY_VALUE = SingleFlight(by=lambda record: record.value)


def single_flight(**options: Any) -> Options:
    return Options(single_flight=BY_VALUE, on_error="dead_letter", **options)


def requests(of: Drive, *pairs: tuple[str, Any]) -> Drive:
    """Add records, each with a key and a request."""
    first = of.scheduler.state.counters.arrived
    of.arrive(
        *(WorkItem(o, key, value, timestamp=o) for o, (key, value) in enumerate(pairs, first))
    )
    return of


def results(of: Drive) -> dict[int, Any]:
    return {outcome.record.offset: outcome.result for outcome in of.emitted}


def test_equal_requests_in_flight_are_one_call() -> None:
    of = requests(
        drive(single_flight()), ("a", "bern"), ("b", "bern"), ("c", "basel"), ("d", "bern")
    )
    assert of.in_flight == [0, 2]
    assert of.scheduler.statistics().following == 2
    of.succeed(0, result="CH-BE")
    assert results(of) == {0: "CH-BE", 1: "CH-BE", 3: "CH-BE"}
    assert [outcome.attempts for outcome in of.emitted] == [1, 0, 0]


def test_a_follower_holds_its_key_but_no_permit() -> None:
    of = requests(drive(single_flight(in_flight=2)), ("a", "x"), ("b", "x"), ("b", "y"), ("c", "z"))
    assert of.in_flight == [0, 3], "b's second record may not overtake its first"
    of.succeed(0)
    assert of.in_flight == [3, 2]


def test_equal_requests_of_one_key_are_made_in_order() -> None:
    of = requests(drive(single_flight()), ("a", "x"), ("a", "x"))
    assert of.in_flight == [0]
    of.succeed(0)
    assert of.in_flight == [1], "without a cache nothing is known any more"


def test_followers_wait_through_the_leader_s_retries() -> None:
    of = requests(drive(single_flight(retry=Retry(attempts=2, first=1, jitter=0))), ("a", "x"))
    of.fail(0, ValueError())
    requests(of, ("b", "x"))
    assert of.in_flight == []
    of.sleep(1)
    assert of.in_flight == [0]
    of.succeed(0, result="at last")
    assert results(of) == {0: "at last", 1: "at last"}


def test_followers_get_the_leader_s_final_error() -> None:
    of = requests(drive(single_flight()), ("a", "x"), ("b", "x"), ("b", "y"))
    of.fail(0, Terminal("no"))
    assert of.errors() == {0: Terminal, 1: Terminal}
    assert of.in_flight == [2]


def test_followers_get_an_error_of_their_own_with_their_offset() -> None:
    of = requests(drive(single_flight()), ("a", "x"), ("b", "x"))
    of.fail(0, WrongResult("no"))
    first, second = (outcome.error for outcome in of.emitted)
    assert isinstance(first, WrongResult)
    assert isinstance(second, WrongResult)
    assert (first.offset, first.key) == (0, "a")
    assert (second.offset, second.key) == (1, "b")
    assert second.__cause__ is first


def test_an_error_that_cannot_be_copied_is_shared() -> None:
    class Odd(Exception):
        def __init__(self, code: int, text: str) -> None:
            super().__init__(f"{code} {text}")

    of = requests(drive(single_flight()), ("a", "x"), ("b", "x"))
    of.fail(0, Odd(1, "no"))
    first, second = (outcome.error for outcome in of.emitted)
    assert first is second


def test_followers_of_a_leader_in_quarantine_make_their_own_call() -> None:
    options = Options(
        single_flight=BY_VALUE,
        order="emit",
        on_error="column",
        quarantine=Quarantine(after=1),
        retry=Retry(attempts=2, first=1, jitter=0),
        deadline=60,
    )
    of = requests(drive(options), ("a", "x"), ("a", "y"), ("b", "x"), ("c", "x"))
    of.fail(0, ValueError())
    of.fail(1, Terminal("no"))
    assert of.in_flight == []
    of.sleep(1)
    assert of.errors() == {0: Quarantined, 1: Terminal}
    assert of.in_flight == [2], "and still one question is one call"
    of.succeed(2, result="X")
    assert results(of) == {0: None, 1: None, 2: "X", 3: "X"}


def test_when_the_leader_fails_the_run_its_followers_are_returned() -> None:
    of = requests(drive(Options(single_flight=BY_VALUE)), ("a", "x"), ("b", "x"))
    of.fail(0, Terminal("no"))
    of.cancel()
    assert [record.offset for record in of.returned] == [0, 1]


def test_a_cached_result_needs_no_call() -> None:
    cache: dict[Any, Any] = {}
    of = requests(drive(single_flight(), cache=cache), ("a", "x"))
    of.succeed(0, result=None)
    requests(of, ("a", "x"), ("b", "x"))
    assert of.in_flight == []
    assert results(of) == {0: None, 1: None, 2: None}, "None is an answer like any other"
    assert of.scheduler.statistics().cache_hits == 2
    assert cache == {"x": None}


def test_a_cached_result_does_not_overtake_its_key() -> None:
    of = requests(drive(single_flight(), cache={"known": 1}), ("a", "unknown"), ("a", "known"))
    assert of.outcomes == []
    of.succeed(0)
    assert of.outcomes == [0, 1]


def test_errors_are_not_cached() -> None:
    cache: dict[Any, Any] = {}
    of = requests(drive(single_flight(), cache=cache), ("a", "x"))
    of.fail(0, Terminal("no"))
    assert cache == {}


def test_a_result_too_large_for_the_cache_is_used_but_not_cached() -> None:
    cache: LRUCache[Any, Any] = LRUCache(maxsize=1, getsizeof=len)
    of = requests(drive(single_flight(), cache=cache), ("a", "x"))
    of.succeed(0, result="far too long")
    assert results(of) == {0: "far too long"}
    assert not cache


@pytest.mark.parametrize("across", [False, True])
def test_a_batch_has_a_request_once(across: bool) -> None:  # noqa: FBT001 a parameter of the table
    options = single_flight(batch=Batch(size=5, across_keys=across), in_flight=5)
    of = requests(drive(options), ("a", "x"), ("b", "x"), ("a", "y"), ("b", "z"))
    asked = [ticket.record.value for call in of.running.values() for ticket in call.tickets]
    assert sorted(asked) == ["x", "y"]
    of.return_batch(0, ["1", "2"])
    assert results(of) == {0: "1", 1: "1", 2: "2"}
    assert of.in_flight == [3]


@pytest.mark.parametrize(
    ("value", "error"),
    [([1], TypeError), ("boom", ZeroDivisionError)],
    ids=["unhashable", "raises"],
)
def test_a_request_function_that_raises_fails_its_record(
    value: Any, error: type[Exception]
) -> None:
    def by(record: WorkItem) -> Any:
        return 1 / 0 if record.value == "boom" else record.value

    of = drive(Options(single_flight=SingleFlight(by=by), on_error="column"))
    requests(of, ("a", value), ("a", "fine"), ("b", "good"))
    assert of.errors() == {0: error}
    assert of.in_flight == [1, 2]


def test_a_leader_is_removed_once_its_result_is_final() -> None:
    group = SingleFlightGroup(BY_VALUE, None)
    of = requests(drive(single_flight()), ("a", "x"))
    (call,) = of.running.values()
    group.lead(call.lead, "x")
    assert group.leaders["x"] is call.lead
    assert group.complete(call.lead) == []
    assert "x" not in group.leaders
    assert group.cached("x") is MISSING


class BrokenCache(dict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise OSError("disk full")

    def get(self, key: Any, default: Any = None) -> Any:
        raise OSError("no such file")


def test_a_broken_cache_is_ignored_and_nothing_is_lost() -> None:
    options = Options(single_flight=SingleFlight(by=lambda record: record.value))
    scheduler = Scheduler(options, cache=BrokenCache())
    scheduler.handle(Tick(), 0.0)
    started = scheduler.handle(Arrived([WorkItem(0, "a", "q"), WorkItem(1, "b", "q")]), 0.0)
    (ticket,) = next(i.tickets for i in started if isinstance(i, Start))
    instructions = scheduler.handle(Succeeded([(ticket, 1, "answer")]), 1.0)
    outcomes = next(i.outcomes for i in instructions if isinstance(i, Emit))
    assert [outcome.result for outcome in outcomes] == ["answer", "answer"]
