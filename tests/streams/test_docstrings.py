"""Every operator's docstring has an example; the examples run as doctests."""

import inspect
from typing import Any

import pytest

from thulawa import streams as dsl
from thulawa.streams.async_operators import AsyncOperators
from thulawa.streams.joins import JoinOperators
from thulawa.streams.kip28 import BuilderAliases, KStreamWindowed, StreamAliases
from thulawa.streams.windowed import SessionWindowedKStream, TimeWindowedKStream

CLASSES: list[Any] = [
    BuilderAliases,
    StreamAliases,
    AsyncOperators,
    JoinOperators,
    KStreamWindowed,
    dsl.BranchedKStream,
    dsl.StreamsBuilder,
    dsl.KStream,
    dsl.KTable,
    dsl.KGroupedStream,
    dsl.KGroupedTable,
    TimeWindowedKStream,
    SessionWindowedKStream,
    dsl.CogroupedKStream,
    dsl.WindowedCogroupedKStream,
]
# What the modules of the DSL use among themselves, and what ends a program.
NO_OPERATORS = {"source", "repartitioned", "at", "after_first_step", "build"}


def operators() -> list[Any]:
    found = {}
    for kind in CLASSES:
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in NO_OPERATORS:
                found[method.__qualname__] = method
    return list(found.values())


@pytest.mark.parametrize("method", operators(), ids=lambda method: method.__qualname__)
def test_every_operator_has_an_example(method: Any) -> None:
    assert ">>>" in (method.__doc__ or "")


def test_public_names_are_sorted_and_documented() -> None:
    assert list(dsl.__all__) == sorted(set(dsl.__all__))
    assert [name for name in dsl.__all__ if not getattr(dsl, name).__doc__] == []
