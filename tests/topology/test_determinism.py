"""Which functions are known to answer the same on a re-run, and which are not."""

import datetime as dt
import functools
import json
import math
import operator
import random
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from thulawa.streams import Processor, Record, StreamsBuilder
from thulawa.topology.determinism import deterministic, node_nondeterminism, nondeterminism_of

LIMIT = 5
TABLE = {"a": 1}


def page_of(visit: dict[str, str]) -> str:
    try:
        return visit["page"].strip("/").lower()
    except KeyError:
        return "none"


def looked_up(value: str) -> Any:
    return TABLE.get(value)


def words(value: str) -> Any:
    for word in value.split():
        yield word, len(word)


def recursive(value: list[Any]) -> int:
    return 1 + sum(recursive(one) for one in value)


def captured(value: Any) -> Callable[..., Any]:
    return lambda key, one: (key, value, one)


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda key, one: function(one)


KNOWN: list[Callable[..., Any]] = [
    lambda key, value: value["page"],
    lambda key, value: str(value % 3),
    lambda key, value: f"{key}-{value:>5}",
    lambda key, value: value.customer.id,
    lambda key, value: [x for x in value if x != key],
    lambda key, value: {k: v for k, v in value.items() if k in ("a", "b")},
    lambda key, value: sorted(value, key=lambda one: one[1])[:3],
    lambda key, value: (key, page_of(value)),
    lambda key, value: math.floor(value) + max(value, 3) ** 2,
    lambda key, value: list(map(str.upper, value)),
    lambda key, value: json.dumps(value, sort_keys=True),
    lambda key, value: value if isinstance(value, dict) else {"n": int(value)},
    lambda: 0,
    page_of,
    words,
    recursive,
    str.upper,
    len,
    list,
    operator.itemgetter("page"),
    operator.attrgetter("page"),
    operator.methodcaller("lower"),
    operator.add,
    called(page_of),
]


@pytest.mark.parametrize("function", KNOWN)
def test_plain_functions_of_their_arguments_are_known(function: Callable[..., Any]) -> None:
    assert nondeterminism_of(function) is None


def stored(key: Any, value: Any) -> None:
    global LIMIT  # noqa: PLW0603 that is the case
    LIMIT = value


def imports(key: Any, value: Any) -> Any:
    import os  # noqa: PLC0415 that is the case

    return os.environ.get(value)


def sets_an_attribute(key: Any, value: Any) -> None:
    value.seen = True


def with_default(key: Any, value: Any, at: float = time.time()) -> Any:
    return at


def ordered_by_a_set(key: Any, value: Any) -> Any:
    return [code for code in {"LK", "US", "DE"} if code in value][0]  # noqa: PLC0208, RUF015


def remembers(key: Any, value: Any) -> int:
    remembers.seen.append(value)  # type: ignore[attr-defined]
    return len(remembers.seen)  # type: ignore[attr-defined]


async def waits(value: Any) -> Any:
    return value


class Counting:
    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, key: Any, value: Any) -> int:
        self.seen += 1
        return self.seen

    def method(self, key: Any, value: Any) -> int:
        return self(key, value)


UNKNOWN: list[tuple[Callable[..., Any], str]] = [
    (lambda key, value: random.random(), "variable random"),
    (lambda key, value: time.time(), "variable time"),
    (lambda key, value: dt.datetime.now(), "variable dt"),  # noqa: DTZ005
    (lambda key, value: value > LIMIT, "variable LIMIT"),
    (lambda key, value: looked_up(value), "looked_up, which uses the variable TABLE"),
    (lambda key, value: math.nothing(value), "math.nothing"),  # type: ignore[attr-defined]
    (lambda key, value: value.fetch(), "calls .fetch"),
    (lambda key, value: value.__class__, "calls .__class__"),
    (lambda key, value: hash(value), "hash"),
    (lambda key, value: {*value}, "BUILD_SET"),
    (lambda key, value: set(value), "calls set"),
    (lambda key, value: open(value), "open"),  # noqa: PTH123, SIM115
    (lambda key, value: max(value, key=lambda one: id(one)), "calls id"),  # noqa: PLW0108
    (lambda key, value: Counting()(key, value), "Counting"),  # noqa: PLW0108
    (captured(7), "captures value"),
    (called(looked_up), "looked_up, which uses the variable TABLE"),
    (called(Counting()), "Counting, which is not declared"),
    (Counting(), "not declared"),
    (Counting().method, "not declared"),
    (functools.partial(page_of), "not declared"),
    (random.random, "not declared"),
    (time.time, "not declared"),
    (stored, "STORE_GLOBAL"),
    (imports, "IMPORT_NAME"),
    (sets_an_attribute, "STORE_ATTR"),
    (with_default, "default"),
    (ordered_by_a_set, "a set, whose order may differ"),
    (remembers, "remembers.seen"),
    (operator.methodcaller("fetch"), "not declared"),
]


@pytest.mark.parametrize(("function", "reason"), UNKNOWN)
def test_whatever_else_a_function_does_makes_it_unknown(
    function: Callable[..., Any], reason: str
) -> None:
    why = nondeterminism_of(function)
    assert why is not None
    assert reason in why


def test_equal_code_in_another_module_is_looked_at_again() -> None:
    def calls(value: Any) -> Any:
        return helper(value)  # type: ignore[name-defined] # noqa: F821 one of each module

    one = types.FunctionType(calls.__code__, {"helper": page_of})
    other = types.FunctionType(calls.__code__, {"helper": looked_up})
    assert nondeterminism_of(one) is None
    assert nondeterminism_of(lambda key, value: (one(value), other(value))) is not None


@pytest.mark.parametrize(
    "function",
    [captured(7), random.random, Counting().method, functools.partial(page_of)],
)
def test_whatever_is_declared_is_known_and_called_alike(function: Callable[..., Any]) -> None:
    assert nondeterminism_of(deterministic(function)) is None


def test_a_declared_builtin_and_method_are_called_alike() -> None:
    assert deterministic(time.strftime)("%%") == "%"
    assert deterministic(Counting().method)(1, 2) == 1


class Forwards(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)


@deterministic
class Declared(Forwards):
    pass


class Below(Declared):
    pass


def test_a_processor_is_known_when_its_own_class_is_declared() -> None:
    def reason(supplier: Any) -> str | None:
        builder = StreamsBuilder()
        builder.stream("in").process(supplier, named="p")
        return node_nondeterminism(builder.build().nodes["p"])

    assert reason(Declared) is None
    assert reason(lambda: Declared()) is None  # noqa: PLW0108 that is the case
    assert reason(Forwards) is not None
    assert reason(Below) is not None
    assert reason(lambda: Forwards()) is not None  # noqa: PLW0108


def test_an_async_call_is_known_when_it_is_declared_and_keeps_the_order_of_records() -> None:
    def reason(**options: Any) -> str | None:
        builder = StreamsBuilder()
        builder.stream("in").map_values_async(waits, named="w", **options)
        return node_nondeterminism(builder.build().nodes["w"])

    assert "async" in str(reason())
    assert "async" in str(reason(emit="partition"))
    assert "emit" in str(reason(deterministic=True))
    assert reason(deterministic=True, emit="partition") is None


def test_a_declaration_is_not_inherited_by_what_wraps_the_function() -> None:
    """`functools.wraps` copies attributes: the wrapper may look at a clock all the same."""

    @deterministic
    def country(key: Any, value: Any) -> Any:
        return TABLE[value]

    @functools.wraps(country)
    def stamped(key: Any, value: Any) -> Any:
        return f"{country(key, value)} {time.time()}"

    assert nondeterminism_of(country) is None
    assert nondeterminism_of(stamped) is not None
    assert nondeterminism_of(deterministic(stamped)) is None
