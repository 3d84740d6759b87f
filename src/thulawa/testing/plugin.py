"""The pytest plugin: a fixture that creates test drivers and closes them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from thulawa.testing.topology_test_driver import TopologyTestDriver
from thulawa.topology.topology import Topology


@pytest.fixture
def topology_test_driver() -> Iterator[Callable[..., TopologyTestDriver]]:
    """Return a factory of `TopologyTestDriver`s, which are closed at the end of the test."""
    with ExitStack() as drivers:

        def make(topology: Topology, **options: Any) -> TopologyTestDriver:
            return drivers.enter_context(TopologyTestDriver(topology, **options))

        yield make
