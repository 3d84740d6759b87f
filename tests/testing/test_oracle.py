"""The order oracle: it convicts every breach of the contract and acquits correct runs."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from thulawa.testing import OrderOracle, OrderViolation, constant, simulate
from thulawa.testing.oracle import Pending
from thulawa.testing.server import Server
from thulawa.testing.simulation import Simulation


@dataclass(frozen=True)
class Visit:
    offset: int
    key: str | None = "a"


def oracle_of(keys: str, **contract: Any) -> OrderOracle:
    """Make an oracle that has seen one record per letter arrive; ``-`` is unkeyed."""
    oracle = OrderOracle(**contract)
    for offset, key in enumerate(keys):
        oracle.arrived(offset, None if key == "-" else key)
    return oracle


def process(oracle: OrderOracle, *offsets: int) -> None:
    for offset in offsets:
        oracle.started(offset)
        oracle.finished(offset)
        oracle.emitted(offset)


def convict(oracle: OrderOracle, act: Callable[[], None], breach: str) -> None:
    """Expect the act to be objected to at once, and again at the end of the run."""
    with pytest.raises(OrderViolation, match=breach) as violation:
        act()
    with pytest.raises(OrderViolation) as repeated:
        oracle.check_complete()
    assert repeated.value is violation.value


def test_calls_of_one_key_must_not_overlap() -> None:
    oracle = oracle_of("aa")
    oracle.started(0)
    convict(oracle, lambda: oracle.started(1), "1 started while 0 was running, in key 'a'")


def test_a_later_record_must_not_start_before_an_earlier_one() -> None:
    oracle = oracle_of("aba")
    oracle.started(1)
    convict(oracle, lambda: oracle.started(2), "2 started before 0 was final")


def test_a_later_record_must_not_start_while_an_earlier_one_awaits_its_retry() -> None:
    oracle = oracle_of("aa")
    oracle.started(0)
    oracle.failed(0)
    convict(oracle, lambda: oracle.started(1), "1 started before 0 was final")


def test_a_later_record_must_not_start_after_an_earlier_one_was_returned() -> None:
    oracle = oracle_of("aa")
    oracle.returned_unprocessed(0)
    convict(oracle, lambda: oracle.started(1), "1 started before 0 was final")


def test_a_record_must_not_start_again_after_a_later_one_has_finished() -> None:
    oracle = oracle_of("aa")
    for offset in (0, 1):
        oracle.started(offset)
        oracle.finished(offset)
    convict(oracle, lambda: oracle.started(0), "0 started after 1 had finished")


def test_records_that_finished_and_were_returned_may_start_again() -> None:
    oracle = oracle_of("aa")
    for offset in (0, 1):
        oracle.started(offset)
        oracle.finished(offset)
    for offset in (0, 1):
        oracle.returned_unprocessed(offset)
        oracle.arrived(offset, "a")
    for offset in (0, 1):
        process(oracle, offset)
    oracle.check_complete()


def test_a_partition_is_processed_one_at_a_time() -> None:
    oracle = oracle_of("ab", order="partition")
    oracle.started(0)
    convict(oracle, lambda: oracle.started(1), "1 started while 0 was running, in the partition")


def test_a_partition_is_processed_in_offset_order() -> None:
    oracle = oracle_of("ab", order="partition")
    convict(oracle, lambda: oracle.started(1), "1 started before 0 was final")


def test_unkeyed_records_are_in_order_like_one_key() -> None:
    oracle = oracle_of("--")
    oracle.started(0)
    convict(oracle, lambda: oracle.started(1), "in the unkeyed records")


def test_a_record_must_not_run_twice_at_once_under_any_contract() -> None:
    oracle = oracle_of("a", order="none")
    oracle.started(0)
    convict(oracle, lambda: oracle.started(0), "0 started while it was running")


@pytest.mark.parametrize("order", ["key", "emit"])
def test_outputs_of_a_key_leave_in_its_order(order: str) -> None:
    oracle = oracle_of("aa", order=order)
    for offset in (0, 1):
        oracle.started(offset)
        oracle.finished(offset)
    convict(oracle, lambda: oracle.emitted(1), "1 emitted before 0 of its line, which is waiting")


def test_an_output_must_not_overtake_a_record_returned() -> None:
    oracle = oracle_of("aa", order="emit")
    oracle.started(1)
    oracle.finished(1)
    oracle.returned_unprocessed(0)
    convict(
        oracle,
        lambda: oracle.emitted(1),
        "1 emitted before 0 of its line, which is returned unproc",
    )


def test_outputs_in_partition_order_leave_by_offset() -> None:
    oracle = oracle_of("ab", emit="partition", order="none")
    oracle.started(1)
    oracle.finished(1)
    convict(oracle, lambda: oracle.emitted(1), "1 emitted before 0 of the partition")


def test_nothing_is_emitted_twice() -> None:
    oracle = oracle_of("a", order="none")
    process(oracle, 0)
    convict(oracle, lambda: oracle.emitted(0), "0 emitted after it was emitted")


def test_nothing_is_emitted_and_returned() -> None:
    oracle = oracle_of("ab", order="none")
    process(oracle, 0)
    convict(
        oracle,
        lambda: oracle.returned_unprocessed(0),
        "0 returned unprocessed after it was emitted",
    )


def test_nothing_is_returned_and_emitted() -> None:
    oracle = oracle_of("a", order="none")
    oracle.returned_unprocessed(0)
    convict(oracle, lambda: oracle.emitted(0), "0 emitted after it was returned unprocessed")


def test_nothing_is_dropped_and_emitted() -> None:
    oracle = oracle_of("a", order="none")
    oracle.dropped(0)
    convict(oracle, lambda: oracle.emitted(0), "0 emitted after it was dropped")


def test_nothing_starts_after_it_has_left() -> None:
    oracle = oracle_of("a", order="none")
    process(oracle, 0)
    convict(oracle, lambda: oracle.started(0), "0 started after it was emitted")


def test_nothing_happens_to_a_record_that_never_arrived() -> None:
    oracle = oracle_of("a")
    convict(oracle, lambda: oracle.started(9), "9 started without having arrived")


def test_nothing_finishes_that_has_not_started() -> None:
    oracle = oracle_of("a")
    convict(oracle, lambda: oracle.finished(0), "0 finished without having started")


def test_nothing_arrives_twice() -> None:
    oracle = oracle_of("ab")
    convict(oracle, lambda: oracle.arrived(0, "a"), "0 arrived twice")


def test_records_arrive_by_offset() -> None:
    oracle = OrderOracle()
    oracle.arrived(5, "a")
    convict(oracle, lambda: oracle.arrived(4, "b"), "4 arrived after 5")


def test_a_lost_record_is_missed_at_the_end() -> None:
    oracle = oracle_of("abc")
    process(oracle, 0, 2)
    with pytest.raises(OrderViolation, match="lost: 1; the first of them, in key 'b'"):
        oracle.check_complete()


def test_many_lost_records_are_counted() -> None:
    oracle = oracle_of("a" * 100)
    with pytest.raises(OrderViolation, match="lost: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more"):
        oracle.check_complete()


def test_a_violation_tells_the_story_of_its_key_with_times() -> None:
    times = iter([0.0, 0.5, 1.0, 2.0, 2.5])
    oracle = OrderOracle(clock=lambda: next(times))
    oracle.arrived(0, "a")
    oracle.arrived(1, "b")
    oracle.arrived(2, "a")
    oracle.started(0)
    with pytest.raises(OrderViolation) as violation:
        oracle.started(2)
    assert str(violation.value).splitlines()[1:] == [
        "  arrived 0 at 0 s",
        "  arrived 2 at 1 s",
        "  started 0 at 2 s",
        "  started 2 at 2.5 s",
    ]


def test_different_keys_may_run_at_once_and_leave_in_any_order() -> None:
    oracle = oracle_of("abc")
    for offset in (2, 0, 1):
        oracle.started(offset)
    for offset in (1, 2, 0):
        oracle.finished(offset)
        oracle.emitted(offset)
    oracle.check_complete()


def test_a_key_may_go_on_once_its_record_is_finished_though_not_emitted() -> None:
    oracle = oracle_of("aa")
    oracle.started(0)
    oracle.finished(0)
    oracle.started(1)
    oracle.emitted(0)
    oracle.finished(1)
    oracle.emitted(1)
    oracle.check_complete()


def test_retries_answers_without_a_call_and_dead_letters_are_in_order() -> None:
    oracle = oracle_of("aaaa")
    for _ in range(3):
        oracle.started(0)
        oracle.failed(0)
    oracle.emitted(0)  # its dead letter
    oracle.emitted(1)  # from the cache
    oracle.dropped(2)
    process(oracle, 3)
    oracle.check_complete()


def test_a_call_that_finished_too_late_may_be_tried_again() -> None:
    oracle = oracle_of("aa")
    oracle.started(0)
    oracle.finished(0)
    process(oracle, 0, 1)
    oracle.check_complete()


def test_a_record_answered_while_its_call_was_being_cancelled_is_final() -> None:
    oracle = oracle_of("aa")
    oracle.started(0)
    oracle.emitted(0)  # timed out for good: its dead letter leaves first
    oracle.failed(0)
    process(oracle, 1)
    oracle.check_complete()


def test_a_key_may_go_on_once_its_record_is_settled_though_not_emitted() -> None:
    oracle = oracle_of("aa")
    oracle.started(0)
    oracle.failed(0)
    oracle.settled(0)
    oracle.settled(0)
    oracle.started(1)
    oracle.finished(1)
    oracle.emitted(0)
    oracle.emitted(1)
    oracle.check_complete()


def test_a_call_that_fails_after_its_record_was_settled_holds_up_nobody() -> None:
    oracle = oracle_of("aa")
    oracle.started(0)
    oracle.settled(0)
    oracle.failed(0)
    oracle.started(1)
    oracle.finished(1)
    oracle.emitted(0)
    oracle.emitted(1)
    oracle.check_complete()


def test_a_key_must_not_go_on_while_the_call_of_a_settled_record_runs() -> None:
    oracle = oracle_of("aa")
    oracle.started(0)
    oracle.settled(0)
    convict(oracle, lambda: oracle.started(1), "1 started while 0 was running")


def test_nothing_is_settled_out_of_turn() -> None:
    oracle = oracle_of("aa")
    convict(oracle, lambda: oracle.settled(1), "1 settled before 0 was final")


def test_nothing_starts_after_it_was_settled() -> None:
    oracle = oracle_of("a")
    oracle.settled(0)
    convict(oracle, lambda: oracle.started(0), "0 started after it was settled")


def test_nothing_is_settled_after_it_has_left() -> None:
    oracle = oracle_of("a")
    process(oracle, 0)
    convict(oracle, lambda: oracle.settled(0), "0 settled after it was emitted")


def test_a_settled_record_that_is_returned_may_come_again() -> None:
    oracle = oracle_of("a")
    oracle.settled(0)
    oracle.returned_unprocessed(0)
    oracle.arrived(0, "a")
    process(oracle, 0)
    oracle.check_complete()


def test_unkeyed_records_may_overlap_when_parallel() -> None:
    oracle = oracle_of("--", unkeyed="parallel")
    oracle.started(1)
    oracle.started(0)
    oracle.finished(1)
    oracle.emitted(1)
    oracle.finished(0)
    oracle.emitted(0)
    oracle.check_complete()


def test_without_order_anything_goes_once() -> None:
    oracle = oracle_of("aa-", order="none")
    oracle.started(0)
    process(oracle, 2, 1)
    oracle.finished(0)
    oracle.emitted(0)
    oracle.check_complete()


def test_under_emit_calls_of_a_key_may_overlap() -> None:
    oracle = oracle_of("aa", order="emit")
    oracle.started(1)
    oracle.started(0)
    oracle.finished(1)
    oracle.finished(0)
    oracle.emitted(0)
    oracle.emitted(1)
    oracle.check_complete()


def test_a_record_returned_may_come_again_and_is_then_due() -> None:
    oracle = oracle_of("aa")
    oracle.started(0)
    oracle.returned_unprocessed(0)
    oracle.failed(0)
    oracle.returned_unprocessed(1)
    oracle.check_complete()
    oracle.arrived(0, "a")
    with pytest.raises(OrderViolation, match="lost: 0"):
        oracle.check_complete()
    process(oracle, 0)
    oracle.arrived(1, "a")
    process(oracle, 1)
    oracle.check_complete()


def test_a_batch_of_one_key_is_one_call() -> None:
    oracle = oracle_of("aaa")
    oracle.started(0, 1)
    convict(oracle, lambda: oracle.started(2), "2 started while 0, 1 was running")


def test_a_batch_must_not_skip_a_record() -> None:
    oracle = oracle_of("aaa")
    convict(oracle, lambda: oracle.started(0, 2), "2 started before 1 was final")


def test_gaps_in_offsets_are_legal() -> None:
    oracle = OrderOracle(emit="partition")
    for offset in (3, 10, 700):
        oracle.arrived(offset, "a")
    process(oracle, 3, 10, 700)
    oracle.check_complete()


def test_an_unknown_contract_is_refused() -> None:
    with pytest.raises(ValueError, match="order is one of key, partition, none, emit, not 'keys'"):
        OrderOracle(order="keys")  # type: ignore[arg-type]


def test_a_wrapped_coroutine_function_reports_its_calls() -> None:
    async def main(simulation: Simulation) -> list[int]:
        oracle = oracle_of("ab")
        server = oracle.wrap(Server(2, constant(1), random=simulation.random))
        answers = await asyncio.gather(server(Visit(0)), server(Visit(1, "b")))
        for answer in answers:
            oracle.emitted(answer.offset)
        oracle.check_complete()
        return [answer.offset for answer in answers]

    assert simulate(main, seed=1) == [0, 1]


def test_a_wrapped_function_is_caught_overlapping_even_if_the_engine_hides_it() -> None:
    async def main(simulation: Simulation) -> OrderOracle:
        oracle = oracle_of("aa", clock=simulation.now)
        server = oracle.wrap(Server(2, constant(1), random=simulation.random))
        visits = [Visit(0), Visit(1)]
        await asyncio.gather(*map(server, visits), return_exceptions=True)
        return oracle

    with pytest.raises(OrderViolation, match="started"):
        simulate(main, seed=1).check_complete()


def test_a_wrapped_call_that_fails_or_is_cancelled_is_not_final() -> None:
    async def main(simulation: Simulation) -> OrderOracle:
        oracle = oracle_of("aa")
        sleep = oracle.wrap(Server(1, constant(5), random=simulation.random))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sleep(Visit(0)), timeout=1)
        return oracle

    oracle = simulate(main, seed=1)
    convict(oracle, lambda: oracle.started(1), "1 started before 0 was final")


def test_a_wrapped_plain_function_reports_from_threads() -> None:
    oracle = oracle_of("abcdefgh" * 50, order="none")
    square = oracle.wrap(lambda visit: visit.offset**2)
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(square, map(Visit, range(400))))
    assert results == [offset**2 for offset in range(400)]
    for offset in range(400):
        oracle.emitted(offset)
    oracle.check_complete()


def test_a_wrapped_plain_function_that_raises_is_not_final() -> None:
    oracle = oracle_of("aa")

    def broken(visit: Visit) -> int:
        return 1 // 0

    with pytest.raises(ZeroDivisionError):
        oracle.wrap(broken)(Visit(0))
    convict(oracle, lambda: oracle.started(1), "1 started before 0 was final")


def test_in_a_wrapped_batch_the_prefix_stands_and_the_rest_of_the_key_is_not_final() -> None:
    oracle = oracle_of("aaab")
    batch = [Visit(0), Visit(1), Visit(2), Visit(3, "b")]

    def second_fails(visits: list[Visit]) -> list[object]:
        return ["ok", ValueError(), "ok", "ok"]

    assert oracle.wrap(second_fails)(batch)[0] == "ok"
    oracle.emitted(0)
    oracle.emitted(3)
    oracle.started(1, 2)
    oracle.finished(1, 2)
    oracle.emitted(1)
    oracle.emitted(2)
    oracle.check_complete()


def test_in_a_wrapped_batch_a_later_record_must_not_overtake_the_failed_one() -> None:
    oracle = oracle_of("aa")

    def first_fails(visits: list[Visit]) -> list[object]:
        return [ValueError(), "ok"]

    assert len(oracle.wrap(first_fails)([Visit(0), Visit(1)])) == 2
    convict(oracle, lambda: oracle.started(1), "1 started before 0 was final")


def test_pending_knows_its_lowest_through_any_mix_of_changes() -> None:
    pending = Pending([4, 2, 9])
    pending.discard(2)
    pending.add(4)
    pending.discard(4)
    pending.add(4)
    pending.discard(77)
    assert pending.first() == 4
    pending.discard(4)
    assert pending.first() == 9
    pending.discard(9)
    assert pending.first() is None


def test_a_record_retried_for_ever_takes_no_more_memory() -> None:
    pending = Pending([1, 2])
    for _ in range(1_000):
        pending.discard(1)
        pending.add(1)
        pending.add(1)
    assert len(pending._heap) == 2
