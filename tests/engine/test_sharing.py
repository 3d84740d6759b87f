"""Equal questions share a call, in flight and through the cache, and order does not notice."""

from typing import Any

import pytest
from cachetools import LRUCache

from tests.engine.model_driver import Drive, drive
from thulawa.core.errors import Quarantined, Terminal, WrongResult
from thulawa.engine.events import Arrived, Emit, Start, Succeeded, Tick
from thulawa.engine.model import Record
from thulawa.engine.options import Batch, Options, Quarantine, Retry, Sharing
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.single_flight import MISSING, Answers

BY_VALUE = Sharing(by=lambda record: record.value)


def sharing(**options: Any) -> Options:
    return Options(sharing=BY_VALUE, on_error="dead_letter", **options)


def asking(of: Drive, *questions: tuple[str, Any]) -> Drive:
    """Have records arrive, each a key and what it asks for."""
    first = of.scheduler.counters.taken
    of.arrive(
        *(Record(o, key, value, timestamp=o) for o, (key, value) in enumerate(questions, first))
    )
    return of


def results(of: Drive) -> dict[int, Any]:
    return {outcome.record.offset: outcome.result for outcome in of.emitted}


def test_equal_questions_in_flight_are_one_call() -> None:
    of = asking(drive(sharing()), ("a", "bern"), ("b", "bern"), ("c", "basel"), ("d", "bern"))
    assert of.in_flight == [0, 2]
    assert of.scheduler.statistics().following == 2
    of.succeed(0, result="CH-BE")
    assert results(of) == {0: "CH-BE", 1: "CH-BE", 3: "CH-BE"}
    assert [outcome.attempts for outcome in of.emitted] == [1, 0, 0]


def test_a_follower_holds_its_key_but_no_permit() -> None:
    of = asking(drive(sharing(in_flight=2)), ("a", "x"), ("b", "x"), ("b", "y"), ("c", "z"))
    assert of.in_flight == [0, 3], "b's second record may not overtake its first"
    of.succeed(0)
    assert of.in_flight == [3, 2]


def test_equal_questions_of_one_key_are_asked_in_order() -> None:
    of = asking(drive(sharing()), ("a", "x"), ("a", "x"))
    assert of.in_flight == [0]
    of.succeed(0)
    assert of.in_flight == [1], "without a cache nothing is known any more"


def test_followers_wait_through_the_leader_s_retries() -> None:
    of = asking(drive(sharing(retry=Retry(attempts=2, first=1, jitter=0))), ("a", "x"))
    of.fail(0, ValueError())
    asking(of, ("b", "x"))
    assert of.in_flight == []
    of.sleep(1)
    assert of.in_flight == [0]
    of.succeed(0, result="at last")
    assert results(of) == {0: "at last", 1: "at last"}


def test_followers_share_the_leader_s_final_error() -> None:
    of = asking(drive(sharing()), ("a", "x"), ("b", "x"), ("b", "y"))
    of.fail(0, Terminal("no"))
    assert of.errors() == {0: Terminal, 1: Terminal}
    assert of.in_flight == [2]


def test_followers_get_an_error_of_their_own_that_says_where_they_are() -> None:
    of = asking(drive(sharing()), ("a", "x"), ("b", "x"))
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

    of = asking(drive(sharing()), ("a", "x"), ("b", "x"))
    of.fail(0, Odd(1, "no"))
    first, second = (outcome.error for outcome in of.emitted)
    assert first is second


def test_followers_of_a_leader_in_quarantine_ask_for_themselves() -> None:
    options = Options(
        sharing=BY_VALUE,
        order="emit",
        on_error="column",
        quarantine=Quarantine(after=1),
        retry=Retry(attempts=2, first=1, jitter=0),
        deadline=60,
    )
    of = asking(drive(options), ("a", "x"), ("a", "y"), ("b", "x"), ("c", "x"))
    of.fail(0, ValueError())
    of.fail(1, Terminal("no"))
    assert of.in_flight == []
    of.sleep(1)
    assert of.errors() == {0: Quarantined, 1: Terminal}
    assert of.in_flight == [2], "and still one question is one call"
    of.succeed(2, result="X")
    assert results(of) == {0: None, 1: None, 2: "X", 3: "X"}


def test_when_the_leader_fails_the_run_its_followers_are_given_back() -> None:
    of = asking(drive(Options(sharing=BY_VALUE)), ("a", "x"), ("b", "x"))
    of.fail(0, Terminal("no"))
    of.cancel()
    assert [record.offset for record in of.given_back] == [0, 1]


def test_a_kept_answer_needs_no_call() -> None:
    cache: dict[Any, Any] = {}
    of = asking(drive(sharing(), cache=cache), ("a", "x"))
    of.succeed(0, result=None)
    asking(of, ("a", "x"), ("b", "x"))
    assert of.in_flight == []
    assert results(of) == {0: None, 1: None, 2: None}, "None is an answer like any other"
    assert of.scheduler.statistics().cache_hits == 2
    assert cache == {"x": None}


def test_a_kept_answer_does_not_overtake_its_key() -> None:
    of = asking(drive(sharing(), cache={"known": 1}), ("a", "unknown"), ("a", "known"))
    assert of.outcomes == []
    of.succeed(0)
    assert of.outcomes == [0, 1]


def test_errors_are_not_kept() -> None:
    cache: dict[Any, Any] = {}
    of = asking(drive(sharing(), cache=cache), ("a", "x"))
    of.fail(0, Terminal("no"))
    assert cache == {}


def test_an_answer_too_large_for_the_cache_is_given_but_not_kept() -> None:
    cache: LRUCache[Any, Any] = LRUCache(maxsize=1, getsizeof=len)
    of = asking(drive(sharing(), cache=cache), ("a", "x"))
    of.succeed(0, result="far too long")
    assert results(of) == {0: "far too long"}
    assert not cache


@pytest.mark.parametrize("across", [False, True])
def test_in_a_batch_a_question_is_asked_once(across: bool) -> None:  # noqa: FBT001 a parameter of the table
    options = sharing(batch=Batch(size=5, across_keys=across), in_flight=5)
    of = asking(drive(options), ("a", "x"), ("b", "x"), ("a", "y"), ("b", "z"))
    asked = [ticket.record.value for call in of.running.values() for ticket in call.tickets]
    assert sorted(asked) == ["x", "y"]
    of.answer(0, ["1", "2"])
    assert results(of) == {0: "1", 1: "1", 2: "2"}
    assert of.in_flight == [3]


@pytest.mark.parametrize(
    ("value", "error"),
    [([1], TypeError), ("boom", ZeroDivisionError)],
    ids=["unhashable", "raises"],
)
def test_a_question_that_cannot_be_put_is_the_record_s_own_error(
    value: Any, error: type[Exception]
) -> None:
    def by(record: Record) -> Any:
        return 1 / 0 if record.value == "boom" else record.value

    of = drive(Options(sharing=Sharing(by=by), on_error="column"))
    asking(of, ("a", value), ("a", "fine"), ("b", "good"))
    assert of.errors() == {0: error}
    assert of.in_flight == [1, 2]


def test_a_leader_is_forgotten_once_its_answer_is_final() -> None:
    answers = Answers(BY_VALUE, None)
    of = asking(drive(sharing()), ("a", "x"))
    (call,) = of.running.values()
    answers.lead(call.lead, "x")
    assert answers.leader("x") is call.lead
    assert answers.settle(call.lead) == []
    assert answers.leader("x") is None
    assert answers.known("x") is MISSING


class BrokenCache(dict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise OSError("disk full")

    def get(self, key: Any, default: Any = None) -> Any:
        raise OSError("no such file")


def test_a_cache_that_breaks_is_no_cache_and_nothing_is_lost() -> None:
    options = Options(sharing=Sharing(by=lambda record: record.value))
    scheduler = Scheduler(options, cache=BrokenCache())
    scheduler.handle(Tick(), 0.0)
    started = scheduler.handle(Arrived([Record(0, "a", "q"), Record(1, "b", "q")]), 0.0)
    (ticket,) = next(i.tickets for i in started if isinstance(i, Start))
    told = scheduler.handle(Succeeded([(ticket, 1, "answer")]), 1.0)
    outcomes = next(i.outcomes for i in told if isinstance(i, Emit))
    assert [outcome.result for outcome in outcomes] == ["answer", "answer"]
