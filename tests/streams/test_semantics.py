"""Kafka's rules at their edges, by hand: one program, records in, what leaves after each."""

from collections.abc import Callable
from typing import Any

import pytest

from thulawa.streams import (
    EmitStrategy,
    Joined,
    JoinWindows,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Windowed,
)
from thulawa.testing import TopologyTestDriver

Case = tuple[Callable[[Any], Any], list[tuple[Any, ...]], list[list[Any]]]


class EveryTen(Processor[Any, Any, Any, Any]):
    """Forwards what comes, and the time at every ten of stream time."""

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        super().init(context)
        context.schedule(10, "stream_time", lambda now: context.forward(Record("time", now, now)))

    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)


def text(left: Any, right: Any) -> str:
    return f"{left}+{right}"


def count(windows: Any, *, final: bool = False) -> Callable[[Any], Any]:
    strategy = EmitStrategy.on_window_close() if final else EmitStrategy.on_window_update()
    return lambda b: (
        b.stream("in").group_by_key().windowed_by(windows).emit_strategy(strategy).count()
    )


def stream_join(kind: str, windows: JoinWindows) -> Callable[[Any], Any]:
    return lambda b: getattr(b.stream("l"), kind)(b.stream("r"), text, windows)


def table_join(kind: str, **options: Any) -> Callable[[Any], Any]:
    return lambda b: getattr(b.table("l"), kind)(b.table("r"), text, **options)


def as_of(kind: str, *, history: int = 100, grace: int | None = None) -> Callable[[Any], Any]:
    def program(builder: Any) -> Any:
        table = builder.table("t", materialized=Materialized.versioned("v", history=history))
        joined: Any = None if grace is None else Joined(grace=grace)
        return getattr(builder.stream("s"), kind)(table, text, joined)

    return program


def both_sessions(builder: Any) -> Any:
    one, other = builder.stream("x").group_by_key(), builder.stream("y").group_by_key()
    together = one.cogroup(lambda k, v, a: a + v).cogroup(other, lambda k, v, a: a + v.upper())
    windows = SessionWindows.of(5, grace=10)
    return together.windowed_by(windows).aggregate(lambda: "", lambda k, a, b: a + b)


def add_or_end(_: Any, value: int, total: int) -> int | None:
    return total + value if value else None


by_first = {"foreign_key": lambda value: None if value[0] == "-" else value[0]}
CASES: dict[str, Case] = {
    "a session is open while end + gap + grace is not behind stream time": (
        count(SessionWindows.of(5, grace=10)),
        [("in", "b", 1, 15), ("in", "a", 1, 0), ("in", "b", 1, 16), ("in", "c", 1, 0)],
        [[(("b", 15, 15), 1, 15)], [(("a", 0, 0), 1, 0)],
         [(("b", 15, 15), None, 15), (("b", 15, 16), 2, 16)], []],
    ),
    "a record in the middle joins two sessions, which are retracted by their end": (
        count(SessionWindows.of(5, grace=10)),
        [("in", "a", 1, 0), ("in", "a", 1, 10), ("in", "a", 1, 5)],
        [[(("a", 0, 0), 1, 0)], [(("a", 10, 10), 1, 10)],
         [(("a", 0, 0), None, 0), (("a", 10, 10), None, 10), (("a", 0, 10), 3, 10)]],
    ),
    "a session of one moment is not retracted": (
        count(SessionWindows.of(5)),
        [("in", "a", 1, 3), ("in", "a", 1, 3)],
        [[(("a", 3, 3), 1, 3)], [(("a", 3, 3), 2, 3)]],
    ),
    "final sessions leave by their end, however far time jumps": (
        count(SessionWindows.of(5), final=True),
        [("in", "a", 1, 10), ("in", "a", 1, 15), ("in", "b", 1, 12), ("in", "c", 1, 1000)],
        [[], [], [], [(("b", 12, 12), 1, 12), (("a", 10, 15), 2, 15)]],
    ),
    "cogrouped sessions merge across streams": (
        both_sessions,
        [("x", "a", "p", 0), ("y", "a", "q", 3), ("x", "a", "r", 8)],
        [[(("a", 0, 0), "p", 0)], [(("a", 0, 0), None, 0), (("a", 0, 3), "pQ", 3)],
         [(("a", 0, 3), None, 3), (("a", 0, 8), "pQr", 8)]],
    ),
    "a late record counts in its newer hopping windows": (
        count(TimeWindows.of(10).advance_by(5)),
        [("in", "b", 1, 12), ("in", "a", 1, 9), ("in", "a", 1, 4)],
        [[(("b", 5, 15), 1, 12), (("b", 10, 20), 1, 12)], [(("a", 5, 15), 1, 9)], []],
    ),
    "hops need not divide the size": (
        count(TimeWindows.of(10).advance_by(3)),
        [("in", "a", 1, 10)],
        [[(("a", 3, 13), 1, 10), (("a", 6, 16), 1, 10), (("a", 9, 19), 1, 10)]],
    ),
    "no key moves no time, no value counts": (
        count(TimeWindows.of(10)),
        [("in", None, 1, 100), ("in", "a", None, 1)],
        [[], [(("a", 0, 10), 1, 1)]],
    ),
    "final windows leave once, by start, then key": (
        count(TimeWindows.of(10), final=True),
        [("in", "b", 1, 1), ("in", "a", 1, 2), ("in", "a", 1, 10), ("in", "a", 1, 1),
         ("in", "c", 1, 999)],
        [[], [], [(("a", 0, 10), 1, 2), (("b", 0, 10), 1, 1)], [], [(("a", 10, 20), 1, 10)]],
    ),
    "a sliding window of no length holds one moment": (
        count(SlidingWindows.of(0, grace=50)),
        [("in", "a", 1, 10), ("in", "a", 1, 10), ("in", "a", 1, 11)],
        [[(("a", 10, 10), 1, 10)], [(("a", 10, 10), 2, 10)], [(("a", 11, 11), 1, 11)]],
    ),
    "both ends of a sliding window belong to it": (
        count(SlidingWindows.of(10, grace=50)),
        [("in", "a", 1, 10), ("in", "a", 1, 20)],
        [[(("a", 0, 10), 1, 10)], [(("a", 11, 21), 1, 20), (("a", 10, 20), 2, 20)]],
    ),
    "both bounds of a join belong to it": (
        stream_join("join", JoinWindows.of(10).with_before(5)),
        [("l", "a", "L", 10), ("r", "a", "5", 5), ("r", "a", "20", 20), ("r", "a", "4", 4),
         ("r", "a", "21", 21)],
        [[], [("a", "L+5", 10)], [("a", "L+20", 20)], [], []],
    ),
    "unmatched records leave in order: time, right before left, key": (
        stream_join("outer_join", JoinWindows.of(10)),
        [("l", "b", "L", 0), ("l", "a", "L", 0), ("r", "z", "R", 0), ("l", "k", "", 10),
         ("l", "k", "", 11)],
        [[], [], [], [], [("z", "None+R", 0), ("a", "L+None", 0), ("b", "L+None", 0)]],
    ),
    "a record that comes unmatched and too late leaves at once": (
        stream_join("left_join", JoinWindows.of(10)),
        [("l", "a", "L", 100), ("l", "b", "late", 89), ("l", "b", "waits", 90)],
        [[], [("b", "late+None", 89)], []],
    ),
    "a tombstone leaves when an outer join of tables has nothing left": (
        table_join("outer_join"),
        [("l", "a", "L", 1), ("r", "a", "R", 5), ("l", "a", None, 3), ("r", "a", None, 2),
         ("r", "a", None, 9)],
        [[("a", "L+None", 1)], [("a", "L+R", 5)], [("a", "None+R", 5)], [("a", None, 2)], []],
    ),
    "an inner join of tables has nothing to say of a row that was not in it": (
        table_join("join"),
        [("r", "a", "R", 1), ("l", "a", "L", 5), ("r", "a", None, 7), ("l", "a", None, 3)],
        [[], [("a", "L+R", 5)], [("a", None, 7)], []],
    ),
    "a foreign key that becomes another, or null, ends the old result": (
        table_join("join", **by_first),
        [("r", "x", "X", 1), ("l", "1", "xA", 5), ("l", "1", "yA", 6), ("r", "y", "Y", 7),
         ("l", "1", "-A", 8), ("r", "y", "Z", 9), ("l", "1", "yB", 10)],
        [[], [("1", "xA+X", 5)], [("1", None, 6)], [("1", "yA+Y", 7)], [("1", None, 8)], [],
         [("1", "yB+Z", 10)]],
    ),
    "a left row without a foreign key is joined with nothing": (
        table_join("left_join", **by_first),
        [("l", "1", "-A", 5), ("l", "1", "xA", 6), ("r", "x", "X", 7), ("r", "x", None, 8)],
        [[("1", "-A+None", 5)], [("1", "xA+None", 6)], [("1", "xA+X", 7)], [("1", "xA+None", 8)]],
    ),
    "a versioned table is joined as of the record's own time": (
        as_of("join"),
        [("t", "a", "10", 10), ("t", "a", "20", 20), ("s", "a", "s", 15), ("s", "a", "s", 20),
         ("s", "a", "s", 9), ("t", "a", None, 30), ("s", "a", "s", 35), ("t", "a", "25", 25),
         ("s", "a", "s", 27)],
        [[], [], [("a", "s+10", 15)], [("a", "s+20", 20)], [], [], [], [], [("a", "s+25", 27)]],
    ),
    "what is older than the history is not known": (
        as_of("left_join", history=10),
        [("t", "a", "0", 0), ("t", "a", "50", 50), ("s", "a", "s", 5), ("s", "a", "s", 40)],
        [[], [], [("a", "s+None", 5)], [("a", "s+0", 40)]],
    ),
    "with grace a record waits for the table, and a late one does not": (
        as_of("left_join", grace=10),
        [("s", "a", "0", 0), ("t", "a", "v", 0), ("s", "a", "5", 5), ("s", "b", "x", 10),
         ("s", "a", "4", 4), ("s", "b", "y", 15), ("s", "a", "4", 4)],
        [[], [], [], [("a", "0+v", 0)], [], [("a", "4+v", 4), ("a", "5+v", 5)], [("a", "4+v", 4)]],
    ),
    "a full buffer emits its oldest early": (
        lambda b: b.table("in").suppress(Suppressed.until_time_limit(99).with_max_records(1)),
        [("in", "a", 1, 0), ("in", "b", 2, 1), ("in", "a", 3, 2), ("in", "a", 4, 3)],
        [[], [("a", 1, 0)], [("b", 2, 1)], []],
    ),
    "a row that came and went while it was held back leaves as gone": (
        lambda b: b.table("in").suppress(Suppressed.until_time_limit(10)),
        [("in", "a", 1, 0), ("in", "a", None, 5), ("in", "b", 1, 20)],
        [[], [], [("a", None, 5)]],
    ),
    "a jump of time makes one call, and the next is at a multiple again": (
        lambda b: b.stream("in").process(EveryTen),
        [("in", "a", 1, 3), ("in", "a", 1, 10), ("in", "a", 1, 47), ("in", "a", 1, 49),
         ("in", "a", 1, 50), ("in", "a", 1, 12)],
        [[("a", 1, 3), ("time", 3, 3)], [("a", 1, 10), ("time", 10, 10)],
         [("a", 1, 47), ("time", 47, 47)], [("a", 1, 49)], [("a", 1, 50), ("time", 50, 50)],
         [("a", 1, 12)]],
    ),
    "an aggregate that becomes nothing is gone, with its time": (
        lambda b: b.stream("in").group_by_key().aggregate(lambda: 0, add_or_end),
        [("in", "a", 1, 1), ("in", "a", 0, 2), ("in", "a", 5, 1)],
        [[("a", 1, 1)], [("a", None, 2)], [("a", 5, 1)]],
    ),
}  # fmt: skip


def plain(record: Record[Any, Any]) -> tuple[Any, Any, int]:
    key = record.key
    if isinstance(key, Windowed):
        key = (key.key, *key.window)
    return key, record.value, record.timestamp


@pytest.mark.parametrize(("program", "inputs", "outputs"), CASES.values(), ids=CASES)
def test_the_rules_hold_at_their_edges(
    program: Callable[[Any], Any], inputs: list[tuple[Any, ...]], outputs: list[list[Any]]
) -> None:
    builder = StreamsBuilder()
    result = program(builder)
    getattr(result, "to_stream", lambda: result)().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        out = driver.create_output_topic("out")
        left = []
        for topic, *record in inputs:
            driver.create_input_topic(topic).pipe_input(*record)
            left.append([plain(record) for record in out.read_records_to_list()])
    assert left == outputs
