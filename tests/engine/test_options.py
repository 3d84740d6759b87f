"""Options are checked when they are created, and errors say what is wrong."""

import dataclasses
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from thulawa.engine.options import (
    Adaptive,
    Batch,
    Bounds,
    Lane,
    Lanes,
    Options,
    Quarantine,
    Rate,
    Retry,
    SingleFlight,
)
from thulawa.errors import ConfigurationError

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Bounds(records=0), "Bounds.records must be at least 1"),
    (lambda: Bounds(bytes=0), "Bounds.bytes must be at least 1"),
    (lambda: Bounds(keys=0), "Bounds.keys must be at least 1"),
    (lambda: Bounds(parked=-1), "Bounds.parked must not be negative"),
    (lambda: Bounds(resume_at=1), r"Bounds.resume_at must be in \[0, 1\)"),
    (lambda: Bounds(resume_at=-0.1), r"Bounds.resume_at must be in \[0, 1\)"),
    (lambda: Retry(attempts=0), r"Retry.attempts must be at least 1 \(1: no retry\)"),
    (lambda: Retry(first=-1), "Retry.first must not be negative"),
    (lambda: Retry(factor=0.9), "Retry.factor must be in .* backoff never shrinks"),
    (lambda: Retry(factor=1001), "Retry.factor must be in"),
    (lambda: Retry(factor=inf), "Retry.factor must be in"),
    (lambda: Retry(first=2, longest=1), "Retry.longest must be at least Retry.first"),
    (lambda: Retry(jitter=1.1), r"Retry.jitter must be in \[0, 1\]"),
    (lambda: Retry(jitter=-0.1), r"Retry.jitter must be in \[0, 1\]"),
    (lambda: Quarantine(after=0), "Quarantine.after must be at least 1"),
    (lambda: Quarantine(seconds=0), "Quarantine.seconds must be positive"),
    (lambda: Quarantine(keys=0), "Quarantine.keys must be at least 1"),
    (lambda: Batch(size=0), "Batch.size must be at least 1"),
    (lambda: Batch(linger=-1), "Batch.linger must be finite and not negative"),
    (lambda: Batch(linger=inf), "Batch.linger must be finite and not negative"),
    (lambda: Batch(target=0), "Batch.target must be positive, or None"),
    (lambda: Rate(per_second=0), "Rate.per_second must be positive"),
    (lambda: Rate(per_second=1, burst=0.5), "Rate.burst must be at least 1"),
    (lambda: Rate(per_second=1, share=0), r"Rate.share must be in \(0, 1\]"),
    (lambda: Rate(per_second=1, share=1.5), r"Rate.share must be in \(0, 1\]"),
    (lambda: Lane(name="a", weight=0), "lane 'a': weight must be positive"),
    (lambda: Lane(name="a", weight=float("inf")), "lane 'a': weight must be positive and finite"),
    (lambda: Lane(name=" "), "a lane needs a name"),
    (lambda: Lane(name="a", reserved=1.1), r"lane 'a': reserved must be in \[0, 1\]"),
    (lambda: Lanes(lanes=()), "Lanes needs at least one lane"),
    (lambda: Lanes(lanes=(Lane(name="a"), Lane(name="a"))), "lane names must differ"),
    (
        lambda: Lanes(lanes=(Lane(name="a", reserved=0.6), Lane(name="b", reserved=0.6))),
        "lanes reserve 120% of the permits",
    ),
    (lambda: Lanes(ageing=0), "Lanes.ageing must be positive, or None"),
    (lambda: Options(in_flight=0), "in_flight must be at least 1"),
    (lambda: Options(timeout=0), "timeout must be positive, or None"),
    (lambda: Options(timeout=nan), "timeout must be positive, or None"),
    (lambda: Options(deadline=-1), "deadline must be positive, or None"),
    (
        lambda: Options(quarantine=Quarantine()),
        "quarantine needs on_error='drop', 'dead_letter' or 'column'",
    ),
    (
        lambda: Options(quarantine=Quarantine(), on_error="drop", order="none"),
        "quarantine needs order='key' or 'emit'",
    ),
    (
        lambda: Options(quarantine=Quarantine(), on_error="drop", order="partition"),
        "quarantine needs order='key' or 'emit'",
    ),
    (lambda: Options(batch=Batch(), order="none"), "same-key batches need order='key'"),
    (lambda: Options(batch=Batch(), order="emit"), r"use Batch\(across_keys=True\)"),
    (lambda: Options(order="emit", emit="partition"), "use order='none', emit='partition'"),
    (
        lambda: Options(in_flight=5, adaptive=Adaptive()),
        r"in_flight=5 has no effect where the limit adapts: use Adaptive\(initial=",
    ),
    (
        lambda: Options(unkeyed="parallel", order="partition"),
        "unkeyed='parallel' has no effect with order='partition'",
    ),
    (
        lambda: Options(unkeyed="parallel", order="none"),
        "unkeyed='parallel' has no effect with order='none'",
    ),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_is_rejected_with_its_reason(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        make()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch": Batch(across_keys=True), "order": "none"},
        {"batch": Batch(across_keys=True), "order": "emit"},
        {"batch": Batch(), "order": "partition"},
        {"quarantine": Quarantine(), "on_error": "column", "order": "emit"},
        {"order": "none", "emit": "partition"},
        {"timeout": inf, "deadline": inf},
        {"unkeyed": "parallel", "order": "emit"},
        {"adaptive": Adaptive()},
        {"single_flight": SingleFlight(by=lambda record: record.key)},
    ],
    ids=" and ".join,
)
def test_combinations_that_work_are_accepted(options: dict[str, Any]) -> None:
    assert Options(**options).in_flight == 100


def test_options_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().in_flight = 2  # type: ignore[misc]


def test_backoff_doubles_up_to_the_longest() -> None:
    retry = Retry(first=0.1, factor=2, longest=0.5, jitter=0)
    waits = [retry.backoff(failures, 0.0) for failures in (1, 2, 3, 4, 5_000)]
    assert waits == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_jitter_only_shortens_the_backoff_and_by_no_more_than_its_share() -> None:
    retry = Retry(first=1, jitter=0.25)
    assert retry.backoff(1, 0.0) == 1
    assert retry.backoff(1, 0.999) == pytest.approx(0.75, abs=1e-3)


def test_the_steepest_backoff_never_overflows() -> None:
    retry = Retry(first=1e6, factor=1_000, longest=1e9)
    assert retry.backoff(10_000, 0.0) == 1e9


@pytest.mark.parametrize(
    ("on", "covered"),
    [
        (ValueError, True),
        (OSError, False),
        ((OSError, ValueError), True),
        (lambda error: "x" in str(error), True),
        (lambda error: "y" in str(error), False),
    ],
)
def test_retry_on_is_a_type_several_types_or_a_function(on: Any, covered: bool) -> None:  # noqa: FBT001 a parameter of the table
    assert Retry(on=on).covers(ValueError("x")) is covered


WRONG_TYPES: list[tuple[type, dict[str, Any], str]] = [
    (Options, {"in_flight": "3"}, "^in_flight must be a whole number, not '3'"),
    (Options, {"in_flight": 2.5}, "^in_flight must be a whole number, not 2.5"),
    (Options, {"in_flight": True}, "^in_flight must be a whole number, not True"),
    (Options, {"retry": 3}, r"^retry must be made with Retry\(...\), not 3"),
    (Options, {"retry": None}, r"^retry must be made with Retry\(...\), not None"),
    (Options, {"bounds": {"records": 3}}, "^bounds must be made with Bounds"),
    (Options, {"batch": 10}, r"^batch must be made with Batch\(...\) or None, not 10"),
    (Options, {"timeout": "2s"}, "^timeout must be a number or None, not '2s'"),
    (Options, {"order": "sorted"}, "^order must be one of 'key', 'partition', 'none', 'emit', not"),
    (Options, {"emit": "never"}, "^emit must be one of 'finished', 'partition', not 'never'"),
    (Options, {"unkeyed": "lost"}, "^unkeyed must be one of 'ordered', 'parallel', not 'lost'"),
    (Options, {"on_error": "hope"}, "^on_error must be one of 'fail', 'drop', 'dead_letter', 'col"),
    (Options, {"name": None}, "^name must be a string, not None"),
    (Bounds, {"records": 1e4}, "^Bounds.records must be a whole number, not 10000.0"),
    (Bounds, {"resume_at": "half"}, "^Bounds.resume_at must be a number, not 'half'"),
    (Retry, {"attempts": "3"}, "^Retry.attempts must be a whole number, not '3'"),
    (Retry, {"first": None}, "^Retry.first must be a number, not None"),
    (Retry, {"on": "ValueError"}, "^Retry.on must be a class of Exception or a tuple.* a function"),
    (Retry, {"on": int}, "^Retry.on must be a class of Exception"),
    (Retry, {"on": (ValueError, 3)}, "^Retry.on must be a class of Exception"),
    (Quarantine, {"seconds": "60"}, "^Quarantine.seconds must be a number, not '60'"),
    (Batch, {"size": "10"}, "^Batch.size must be a whole number, not '10'"),
    (Batch, {"across_keys": 1}, "^Batch.across_keys must be True or False, not 1"),
    (Batch, {"target": "1s"}, "^Batch.target must be a number or None, not '1s'"),
    (Rate, {"per_second": "fast"}, "^Rate.per_second must be a number, not 'fast'"),
    (Lane, {"name": 3}, "^Lane.name must be a string, not 3"),
    (Lane, {"name": "a", "weight": "1"}, "^Lane.weight must be a number, not '1'"),
    (
        Lanes,
        {"lanes": ("a", "b")},
        r"^Lanes.lanes must be a tuple, each made with Lane\(...\), not",
    ),
    (Lanes, {"lanes": [Lane(name="a")]}, "^Lanes.lanes must be a tuple"),
    (Lanes, {"strict": "yes"}, "^Lanes.strict must be True or False, not 'yes'"),
    (SingleFlight, {"by": "key"}, "^SingleFlight.by must be a function, not 'key'"),
    (Adaptive, {"mode": "on"}, "^Adaptive.mode must be one of 'observe', 'enforce', not 'on'"),
    (Adaptive, {"maximum": 1e3}, "^Adaptive.maximum must be a whole number, not 1000.0"),
]


@pytest.mark.parametrize(
    ("kind", "chosen", "reason"),
    WRONG_TYPES,
    ids=[f"{kind.__name__}-{chosen}" for kind, chosen, _ in WRONG_TYPES],
)
def test_values_of_the_wrong_type_are_rejected_by_name(
    kind: type, chosen: Any, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        kind(**chosen)
