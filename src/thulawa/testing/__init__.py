"""Test stream programs without Kafka or Spark, and concurrent functions in virtual time.

`TopologyTestDriver` runs a whole topology in one process; `preview` runs a few operators on a few
records.

For concurrent functions there are three independent tools:

- `simulate` runs a coroutine on a `VirtualTimeLoop`: hours pass in milliseconds, and every race is
  decided by a seed, which a failure prints.
- Models of services: latencies (`constant`, `uniform`, `lognormal`, `never`), faults (`fails`,
  `fails_always`, `fails_with_probability`, `overloaded`, applied to a function by `flaky`), and a
  `Server` with slots and a queue.
- `OrderOracle` observes what happens to each record and raises when the order contract is violated.

``docs/how-to/test-functions-in-virtual-time.md`` shows how to test your own functions with them.
"""

from thulawa.testing.driver_topics import TestInputTopic, TestOutputTopic
from thulawa.testing.loop import Overrun, SimulationError, Stalled, Unretrieved, VirtualTimeLoop
from thulawa.testing.models import (
    Fault,
    Latency,
    constant,
    fails,
    fails_always,
    fails_with_probability,
    flaky,
    lognormal,
    never,
    overloaded,
    uniform,
)
from thulawa.testing.oracle import OrderOracle, OrderViolation
from thulawa.testing.preview import preview
from thulawa.testing.server import Server, ServerStatistics
from thulawa.testing.simulation import Simulation, seeds, simulate
from thulawa.testing.topology_test_driver import TopologyTestDriver

__all__ = [
    "Fault",
    "Latency",
    "OrderOracle",
    "OrderViolation",
    "Overrun",
    "Server",
    "ServerStatistics",
    "Simulation",
    "SimulationError",
    "Stalled",
    "TestInputTopic",
    "TestOutputTopic",
    "TopologyTestDriver",
    "Unretrieved",
    "VirtualTimeLoop",
    "constant",
    "fails",
    "fails_always",
    "fails_with_probability",
    "flaky",
    "lognormal",
    "never",
    "overloaded",
    "preview",
    "seeds",
    "simulate",
    "uniform",
]
