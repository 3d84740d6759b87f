"""Bad records, arguments and caches: a clear error or `on_error`, and nothing is lost."""

from decimal import Decimal
from typing import Any

import pytest

from tests.engine.bad_parts import (
    BAD,
    POLICIES,
    Policy,
    answer,
    good,
)
from tests.engine.driver_parts import (
    FakeSink,
    FakeSource,
    nothing_is_lost,
    numbered,
    run_on,
)
from thulawa.engine import Engine, Options, SingleFlight, WorkItem
from thulawa.errors import (
    BadKey,
    BadLane,
    ConfigurationError,
    ThulawaError,
)


class HashRaises:
    def __hash__(self) -> int:
        raise ValueError("no")


class EqualToNothing:
    """A value like pandas' NA, whose comparison has no truth value."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> Any:
        return self

    __ne__ = __eq__

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


BAD_KEYS: dict[str, Any] = {
    "a list": [],
    "a dictionary": {},
    "a set": set(),
    "a tuple with a list": (1, []),
    "NaN": float("nan"),
    "a tuple with NaN": ("a", (1, float("nan"))),
    "a decimal NaN": Decimal("nan"),
    "a signalling NaN": Decimal("snan"),
    "a hash that raises": HashRaises(),
    "an equality that cannot be told": EqualToNothing(),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_bad_key_is_handled_by_on_error(key: Any, policy: Policy) -> None:
    records = numbered("abc" * 4)
    records[BAD].key = key
    error = run_on(answer(policy, good, BadKey, records=records))
    assert isinstance(error, BadKey)
    if policy != "drop":
        assert error.offset == BAD
        assert "use a key of" in str(error)


@pytest.mark.parametrize(
    ("order", "emit"), [("key", "finished"), ("key", "partition"), ("emit", "finished")]
)
def test_a_bad_key_does_not_change_the_order(order: Any, emit: Any) -> None:
    records = numbered("abc" * 4)
    records[BAD].key = BAD_KEYS["a list"]
    options = {"order": order, "emit": emit}
    error = run_on(answer("dead_letter", good, BadKey, records=records, options=options))
    assert isinstance(error, BadKey)


@pytest.mark.parametrize("order", ["partition", "none"])
def test_without_order_a_key_may_be_anything(order: Any) -> None:
    async def main() -> None:
        sink = FakeSink()
        await Engine(good, Options(order=order)).run(FakeSource(numbered([[], {}, "a"])), sink)
        assert sink.results() == [0, 1, 2]

    run_on(main())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lane", [1, 7, -1])
def test_a_lane_that_does_not_exist_is_handled_by_on_error(lane: int, policy: Policy) -> None:
    records = numbered("abc" * 4)
    records[BAD].lane = lane
    error = run_on(answer(policy, good, BadLane, records=records))
    assert policy == "drop" or f"no lane {lane}" in str(error)


@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize("sequence", [(0, 1, 2, 2, 3), (0, 1, 2, 1, 3), (5, 6, 7, -1, 8)])
def test_offsets_that_do_not_rise_end_the_run_and_nothing_is_lost(
    sequence: tuple[int, ...], chunk: int
) -> None:
    async def main() -> None:
        engine = Engine(good)
        records = [WorkItem(offset, key) for offset, key in zip(sequence, "abcab", strict=True)]
        source, sink = FakeSource(records, chunk=chunk), FakeSink()
        with pytest.raises(ValueError, match="offsets must rise"):
            await engine.run(source, sink)
        delivered = [outcome.record for outcome in sink.outcomes]
        assert {id(r) for r in [*delivered, *engine.unfinished]} == {id(r) for r in source.taken}
        assert len(delivered) + len(engine.unfinished) == len(source.taken)

    run_on(main())


@pytest.mark.parametrize(
    ("stray", "named"),
    [
        ({"key": "a"}, "not dict: {'key': 'a'}"),
        ((2, "a", "x"), "not tuple"),
        (None, "not NoneType"),
    ],
    ids=repr,
)
def test_an_object_that_is_no_work_item_ends_the_run_and_nothing_is_lost(
    stray: Any, named: str
) -> None:
    async def main() -> None:
        engine = Engine(good, Options(name="locate"))
        records = [WorkItem(0, "a"), WorkItem(1, "b"), stray]
        message = rf"locate: records must be made with WorkItem\(offset, key, value, ...\), {named}"
        with pytest.raises(ThulawaError, match=message):
            async for _ in engine.map(records):
                pass
        assert engine.unfinished == records

    run_on(main())


def test_a_broken_cache_is_ignored_and_nothing_is_lost() -> None:
    class Broken(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            raise ConnectionError("no cache")

    async def main() -> None:
        options = Options(single_flight=SingleFlight(by=lambda record: record.key))
        engine = Engine(good, options, cache=Broken())
        source, sink = FakeSource(numbered("abcabc")), FakeSink()
        await engine.run(source, sink)
        assert len(sink.outcomes) == 6
        nothing_is_lost(engine, source, sink)

    run_on(main())


def test_a_cache_without_single_flight_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="single_flight"):
        Engine(good, cache={})


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"function": "x"}, "the function must be callable, not 'x'"),
        ({"options": {"in_flight": 3}}, "not a dict"),
        ({"threads": 0}, "threads must be a whole number from 1 on, not 0"),
        ({"threads": "8"}, "threads must be a whole number"),
        ({"stop_timeout": -1.0}, "stop_timeout must be seconds from 0 on"),
        ({"stop_timeout": "5s"}, "stop_timeout must be seconds"),
    ],
    ids=repr,
)
def test_an_engine_rejects_arguments_that_cannot_work(parts: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Engine(**{"function": good, **parts})
