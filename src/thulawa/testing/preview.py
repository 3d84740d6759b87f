"""Run a few operators on a few records, in one line."""

import inspect
from collections.abc import Callable
from typing import Any

from thulawa.core.serdes import Serdes
from thulawa.errors import ConfigurationError
from thulawa.streams.kstream import KStream
from thulawa.streams.ktable import KTable
from thulawa.streams.streams_builder import StreamsBuilder
from thulawa.testing.topology_test_driver import TopologyTestDriver


def preview(
    program: Callable[..., Any],
    *records: tuple[Any, ...],
    wall_clock: int = 0,
    timestamps: bool = False,
) -> list[tuple[Any, ...]]:
    """Run a function of streams over records; return the keys and values of its result.

    Keys and values are JSON: tuples come back as lists.

    Each parameter of the function names a topic. It is a stream, or, if its name ends with
    ``table``, a table (``global_table``: a global table). A record is (key, value) or (key, value,
    timestamp); with several topics it begins with the name of its topic. ``wall_clock`` advances
    the clock at the end.

    >>> preview(lambda words: words.map_values(str.upper), ("a", "x"), ("b", "y"))
    [('a', 'X'), ('b', 'Y')]
    >>> preview(
    ...     lambda sales, price_table: sales.join(price_table, lambda n, price: n * price),
    ...     ("price_table", "tea", 3),
    ...     ("sales", "tea", 2),
    ... )
    [('tea', 6)]
    """
    builder = StreamsBuilder()
    topics = list(inspect.signature(program).parameters)
    result = program(*[_read(builder, topic) for topic in topics])
    if isinstance(result, KTable):
        result = result.to_stream()
    if not isinstance(result, KStream):
        raise ConfigurationError("the function must return a stream or a table")
    result.to("preview-output")
    with TopologyTestDriver(builder.build(), key_serde=Serdes.json()) as driver:
        for record in records:
            topic, rest = (topics[0], record) if len(topics) == 1 else (record[0], record[1:])
            driver.create_input_topic(topic).pipe_input(*rest)
        driver.advance_wall_clock_time(wall_clock)
        found = driver.create_output_topic("preview-output").read_records_to_list()
    if timestamps:
        return [(record.key, record.value, record.timestamp) for record in found]
    return [(record.key, record.value) for record in found]


def _read(builder: StreamsBuilder, topic: str) -> Any:
    if topic.endswith("global_table"):
        return builder.global_table(topic)
    return builder.table(topic) if topic.endswith("table") else builder.stream(topic)
