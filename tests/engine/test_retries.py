"""Failed attempts: whether and when they are retried, and `on_error`."""

import pytest

from tests.engine.model_driver import Drive, drive, records
from thulawa.engine.completion import verdict_of
from thulawa.engine.failure_policy import FailingKeys
from thulawa.engine.options import Batch, OnError, Options, Quarantine, Rate, Retry, SingleFlight
from thulawa.engine.work_items import WorkItem
from thulawa.errors import (
    AttemptTimedOut,
    DeadlineExceeded,
    Overload,
    Quarantined,
    RecordError,
    Retriable,
    SelfCancelled,
    Terminal,
    WrongResult,
)

STEADY = Retry(attempts=3, first=1, factor=2, jitter=0)


def fail_until_final(of: Drive, offset: int, error: Exception) -> int:
    """Fail every attempt of a record; return how many there were."""
    attempts = 0
    while offset in of.in_flight:
        attempts += 1
        of.fail(offset, error)
        if of.wake is not None:
            of.tick()
        assert attempts < 50, "there is no end to it"
    return attempts


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_record_has_the_configured_number_of_attempts(attempts: int) -> None:
    of = drive(Options(retry=Retry(attempts=attempts), on_error="dead_letter"), "a")
    assert fail_until_final(of, 0, ValueError("x")) == attempts
    assert of.errors() == {0: ValueError}
    assert of.emitted[0].attempts == attempts


@pytest.mark.parametrize("error", [Terminal("no use"), WrongResult("a banana")])
def test_a_terminal_error_is_not_retried(error: Exception) -> None:
    of = drive(Options(retry=STEADY, on_error="dead_letter"), "a")
    assert fail_until_final(of, 0, error) == 1
    assert of.emitted[0].error is error


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(OSError(), 3), (ValueError(), 1), (Retriable(), 3), (AttemptTimedOut("slow"), 3)],
    ids=["covered", "not covered", "retriable by its class", "time-out"],
)
def test_only_errors_that_the_retry_covers_are_retried(error: Exception, attempts: int) -> None:
    retry = Retry(attempts=3, on=OSError)
    of = drive(Options(retry=retry, on_error="dead_letter"), "a")
    assert fail_until_final(of, 0, error) == attempts


def test_a_retry_predicate_that_raises_counts_as_no_and_adds_a_note() -> None:
    def broken(error: Exception) -> bool:
        raise KeyError("oops")

    of = drive(Options(retry=Retry(attempts=3, on=broken), on_error="column"), "a")
    of.fail(0, ValueError("x"))
    error = of.emitted[0].error
    assert isinstance(error, ValueError)
    assert "KeyError('oops')" in error.__notes__[0]


def test_a_retry_starts_when_its_backoff_is_over_and_not_before() -> None:
    of = drive(Options(retry=STEADY), "a")
    of.fail(0, ValueError())
    of.sleep(0.99)
    assert of.in_flight == []
    of.sleep(0.01)
    assert of.in_flight == [0]
    of.fail(0, ValueError())
    of.sleep(1.99)
    assert of.in_flight == []
    of.sleep(0.01)
    assert of.in_flight == [0]


def test_a_parked_record_holds_its_key_but_no_permit() -> None:
    of = drive(Options(retry=STEADY, in_flight=1), "aab")
    of.fail(0, ValueError())
    assert of.in_flight == [2], "the other key goes on, the same key does not"
    of.succeed(2)
    assert of.in_flight == []
    of.sleep(1)
    assert of.in_flight == [0]


def test_backoff_is_per_record() -> None:
    of = drive(Options(retry=STEADY), "ab")
    of.fail(0, ValueError())
    of.sleep(1)
    of.fail(0, ValueError())
    of.fail(1, ValueError())
    of.sleep(1)
    assert of.in_flight == [1], "its first wait, not the other record's second"


def test_overload_is_retried_without_end_and_never_counted() -> None:
    of = drive(Options(retry=Retry(attempts=1), on_error="dead_letter"), "a")
    for _ in range(20):
        of.fail(0, Overload())
        of.tick()
        assert of.in_flight == [0]
    of.fail(0, ValueError("first failure that counts"))
    assert of.errors() == {0: ValueError}
    assert of.scheduler.statistics().overloads == 20


def test_overload_ends_at_the_deadline() -> None:
    of = drive(Options(retry=Retry(attempts=9), deadline=5, on_error="dead_letter"), "a")
    fail_until_final(of, 0, Overload("429"))
    error = of.emitted[0].error
    assert isinstance(error, DeadlineExceeded)
    assert isinstance(error.__cause__, Overload)
    assert of.now <= 5


def test_a_call_that_times_out_is_abandoned_and_its_late_result_ignored() -> None:
    of = drive(Options(timeout=1, retry=STEADY), "a")
    late = of.call(0)
    of.sleep(1)
    assert of.in_flight == []
    assert of.scheduler.statistics().timeouts == 1
    of.sleep(1)
    assert of.in_flight == [0]
    of.return_late(late)
    of.return_late(late, Terminal("too late"))
    assert of.emitted == []
    of.succeed(0, result="in time")
    assert [outcome.result for outcome in of.emitted] == ["in time"]


def test_a_timeout_counts_as_a_failed_attempt() -> None:
    of = drive(Options(timeout=1, retry=Retry(attempts=2, first=0), on_error="dead_letter"), "a")
    of.sleep(1)
    assert of.in_flight == [0]
    of.sleep(1)
    assert of.errors() == {0: AttemptTimedOut}


def test_a_result_just_in_time_is_final_and_cancels_the_timeout() -> None:
    of = drive(Options(timeout=1), "a")
    of.sleep(0.999)
    of.succeed(0)
    of.sleep(10)
    assert of.scheduler.statistics().timeouts == 0
    assert len(of.scheduler.state.timers) == 0


def test_the_deadline_covers_all_attempts_and_backoff() -> None:
    of = drive(Options(deadline=2.5, retry=STEADY, on_error="dead_letter"), "a")
    of.sleep(1)
    of.fail(0, ValueError())
    of.sleep(1)
    assert of.in_flight == [0]
    of.sleep(0.5)
    assert of.errors() == {0: DeadlineExceeded}


def test_a_retry_that_would_come_after_the_deadline_is_not_waited_for() -> None:
    of = drive(Options(deadline=1, retry=STEADY, on_error="dead_letter"), "a")
    of.sleep(0.5)
    of.fail(0, ValueError("x"))
    assert of.errors() == {0: ValueError}


def test_a_retry_whose_deadline_passes_while_it_waits_for_a_permit_is_not_called() -> None:
    options = Options(deadline=3, retry=STEADY, on_error="dead_letter", in_flight=1)
    of = drive(options, "ab")
    of.fail(0, ValueError())
    of.sleep(2)
    assert of.in_flight == [1]
    of.sleep(0.99)
    assert of.in_flight == [1]
    of.now = 3.5
    of.succeed(1)
    assert of.in_flight == []
    assert of.errors() == {0: DeadlineExceeded}


def test_the_deadline_of_another_record_in_its_batch_costs_no_attempt() -> None:
    options = Options(
        batch=Batch(size=2, across_keys=True),
        in_flight=1,
        deadline=10,
        retry=Retry(first=9, longest=9, jitter=0),
        on_error="dead_letter",
    )
    of = drive(options, "a")
    of.fail(0, Overload())
    of.sleep(8)
    of.arrive(*records("bc", first=1))
    of.sleep(1)
    of.return_batch(1, ["ok", "ok"])
    of.deliver()
    of.arrive(*records("d", first=3))
    assert of.in_flight == [0]
    of.return_batch(0, ["ok"])

    of = drive(options, "x")
    of.arrive(*records("a", first=1))
    of.return_batch(0, ["ok"])
    of.fail(1, Overload())
    of.arrive(*records("y", first=2))
    of.sleep(9.5)
    of.arrive(*records("b", first=3))
    of.return_batch(2, ["ok"])
    assert of.in_flight == [1, 3]
    of.sleep(0.5)
    assert of.errors() == {1: DeadlineExceeded}
    of.sleep(9)
    assert of.in_flight == [3], "it had half a second of its ten"


@pytest.mark.parametrize("policy", ["dead_letter", "column"])
def test_by_policy_the_error_is_emitted_in_place_of_the_result(policy: OnError) -> None:
    of = drive(Options(on_error=policy, emit="partition"), "ab")
    of.fail(1, Terminal("no"))
    assert of.outcomes == []
    of.succeed(0)
    assert of.outcomes == [0, 1]
    assert of.errors() == {1: Terminal}


def test_by_policy_drop_the_record_is_finished_without_an_outcome_but_counted() -> None:
    of = drive(Options(on_error="drop"), "ab")
    of.fail(0, Terminal("no"))
    statistics = of.scheduler.statistics()
    assert of.outcomes == []
    assert (statistics.dropped, statistics.failed, statistics.frontier) == (1, 1, 1)


def test_by_policy_fail_the_run_ends_with_the_record_and_the_cause() -> None:
    of = drive(Options(on_error="fail", name="locate"), "abc")
    of.fail(1, ValueError("no such place"))
    assert isinstance(of.aborted, RecordError)
    assert isinstance(of.aborted.__cause__, ValueError)
    assert "locate: ValueError: no such place (record at offset 1)" in str(of.aborted)
    of.cancel()
    assert [record.offset for record in of.returned] == [0, 1, 2]


def test_after_a_failure_nothing_starts_and_late_results_lose_nothing() -> None:
    of = drive(Options(on_error="fail", in_flight=3, retry=STEADY), "abcde")
    of.fail(1, Terminal("no"))
    of.succeed(0)
    of.fail(2, ValueError())
    assert of.in_flight == []
    assert of.outcomes == [0]
    of.deliver()
    of.cancel()
    assert [record.offset for record in of.returned] == [1, 2, 3, 4]


@pytest.mark.parametrize("batch", [None, Batch(size=2), Batch(size=2, across_keys=True)], ids=repr)
def test_starts_of_the_step_that_ends_the_run_never_begin(batch: Batch | None) -> None:
    def by(record: WorkItem) -> object:
        return 1 / record.value  # raises for the third record

    options = Options(
        on_error="fail",
        single_flight=SingleFlight(by=by),
        batch=batch,
        timeout=1,
        rate=Rate(per_second=1, burst=9),
    )
    of = Drive(options).begin()
    step = of.arrive(*(WorkItem(o, "abcd"[o], 2 - o, timestamp=o) for o in range(4)))
    assert isinstance(of.aborted, RecordError)
    assert of.aborted.offset == 2
    assert (step.started, of.in_flight) == ([], [])
    statistics = of.scheduler.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 4)
    of.cancel()
    assert [record.offset for record in of.returned] == [0, 1, 2, 3]


def test_the_error_of_a_record_names_engine_offset_and_key() -> None:
    of = drive(Options(name="locate", on_error="column"), "a")
    of.fail(0, SelfCancelled("cancelled itself"))
    error = of.emitted[0].error
    assert isinstance(error, SelfCancelled)
    assert (error.node, error.offset, error.key, error.attempts) == ("locate", 0, "a", 1)


def test_timeouts_and_overload_count_as_overload_and_other_errors_as_failures() -> None:
    assert verdict_of(Overload()) == "overload"
    assert verdict_of(TimeoutError()) == "overload"
    assert verdict_of(AttemptTimedOut("slow")) == "overload"
    assert verdict_of(ValueError()) == "failure"


# --- quarantine

QUARANTINED = Options(quarantine=Quarantine(after=2, seconds=10), on_error="dead_letter")


def test_a_key_that_failed_too_often_in_a_row_is_quarantined_and_others_are_not() -> None:
    of = drive(QUARANTINED, "aaaab")
    of.fail(0, Terminal("no"))
    assert of.in_flight == [4, 1]
    of.fail(1, Terminal("no"))
    assert of.in_flight == [4]
    assert of.errors() == {0: Terminal, 1: Terminal, 2: Quarantined, 3: Quarantined}
    assert of.scheduler.statistics().quarantined_keys == 1


def test_a_success_in_between_starts_the_count_anew() -> None:
    of = drive(QUARANTINED, "aaaa")
    of.fail(0, Terminal("no"))
    of.succeed(1)
    of.fail(2, Terminal("no"))
    assert of.in_flight == [3]


def test_after_the_quarantine_one_record_decides() -> None:
    of = drive(QUARANTINED, "aa")
    of.fail(0, Terminal("no"))
    of.fail(1, Terminal("no"))
    of.sleep(10)
    of.arrive(*records("aa", first=2))
    assert of.in_flight == [2]
    of.fail(2, Terminal("still"))
    assert of.errors()[3] is Quarantined
    of.sleep(10)
    of.arrive(*records("aa", first=4))
    of.succeed(4)
    assert of.in_flight == [5]


def test_unkeyed_records_are_never_quarantined_nor_remembered() -> None:
    options = Options(quarantine=Quarantine(after=1, keys=1), on_error="dead_letter")
    of = drive(options, "a---")
    of.fail(0, Terminal("no"))
    for offset in (1, 2, 3):
        of.fail(offset, Terminal("no"))
    of.arrive(*records("a", first=4))
    assert of.errors()[4] is Quarantined


def test_the_number_of_remembered_failing_keys_is_bounded() -> None:
    failing = FailingKeys(Quarantine(after=1, seconds=100, keys=3))
    for key in "abcdef":
        failing.failed(key, now=0.0)
    assert len(failing) == 3
    assert [key for key in "abcdef" if failing.blocked(key, now=1.0)] == ["d", "e", "f"]
    failing.failed("d", now=1.0)
    failing.failed("g", now=1.0)
    assert [key for key in "defg" if failing.blocked(key, now=1.0)] == ["d", "f", "g"]


def test_a_key_is_free_exactly_when_its_quarantine_is_over() -> None:
    failing = FailingKeys(Quarantine(after=1, seconds=10))
    failing.failed("a", now=5.0)
    assert failing.blocked("a", now=14.999)
    assert not failing.blocked("a", now=15.0)
    assert failing.quarantined(now=15.0) == 0


def test_a_key_whose_calls_overlap_is_quarantined_too() -> None:
    options = Options(order="emit", quarantine=Quarantine(after=1), on_error="column", in_flight=2)
    of = Drive(options).begin()
    of.arrive(*(WorkItem(offset, "a") for offset in range(4)))
    of.fail(1, Terminal("no"))
    assert of.in_flight == [0]
    of.succeed(0)
    assert of.outcomes == [0, 1, 2, 3]
    assert of.errors() == {1: Terminal, 2: Quarantined, 3: Quarantined}


def test_the_rest_of_a_batch_is_not_cancelled_by_the_quarantine_of_its_key() -> None:
    options = Options(
        quarantine=Quarantine(after=1, seconds=10), on_error="column", batch=Batch(size=3)
    )
    of = drive(options, "a")
    of.return_batch(0, ["ok"])
    of.arrive(*records("aaaa", first=1))
    of.return_batch(1, [Terminal("no"), "ok", Terminal("no")])
    assert of.outcomes == [0, 1, 2, 3, 4]
    assert of.errors() == {1: Terminal, 3: Terminal, 4: Quarantined}
