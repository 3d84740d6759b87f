"""Turn the topology of a case into a program of the DSL."""

from collections.abc import Callable
from typing import Any

from tests.conformance import functions as f
from tests.conformance.grammar import check
from thulawa.core.records import Record
from thulawa.state.specs import StoreSpec
from thulawa.streams.kstream import KStream
from thulawa.streams.ktable import KTable
from thulawa.streams.operator_options import Branched, Joined, Materialized, Suppressed
from thulawa.streams.streams_builder import StreamsBuilder
from thulawa.streams.windowed import EmitStrategy
from thulawa.topology.processor import Processor
from thulawa.topology.topology import Topology
from thulawa.topology.windows import JoinWindows, SessionWindows, SlidingWindows, TimeWindows

Node = dict[str, Any]


def build(case: dict[str, Any]) -> Topology:
    """Build a case's program; each observed node writes to the topic ``out-<id>``."""
    builder = StreamsBuilder()
    add_to(builder, case)
    return builder.build()


def add_to(
    builder: StreamsBuilder, case: dict[str, Any], prefix: str = "", produced: Any = None
) -> None:
    """Add a case to a program; ``prefix`` keeps the topics and stores of several cases apart."""
    check(case)
    program = _Program(builder, prefix)
    for node in case["topology"]:
        program.add(node)
    for output in case["outputs"]:
        made = program.made[output]
        stream = made.to_stream() if isinstance(made, KTable) else made
        stream.to(f"{prefix}out-{output}", produced)


class _Program:
    def __init__(self, builder: StreamsBuilder, prefix: str) -> None:
        self.builder = builder
        self.prefix = prefix
        self.made: dict[str, Any] = {}

    def add(self, node: Node) -> None:
        made = getattr(self, f"_{node['op']}")(node)
        if made is not None:
            self.made[node["id"]] = made

    def _kept(self, node: Node, *, default: bool) -> Any:
        """Return a store for the node's table if the case asks for one."""
        if not node.get("materialized", default):
            return None
        return Materialized.as_(f"{self.prefix}{node['id']}-kept")

    def _kept_if_said(self, node: Node) -> list[Any]:
        kept = self._kept(node, default=False)
        return [] if kept is None else [kept]

    def _in(self, node: Node) -> Any:
        inputs = node["in"]
        return self.made[inputs] if isinstance(inputs, str) else [self.made[i] for i in inputs]

    def _stream(self, node: Node) -> Any:
        return self.builder.stream(self.prefix + node["topic"])

    def _table(self, node: Node) -> Any:
        if not node.get("versioned"):
            kept = self._kept(node, default=False)
            return self.builder.table(self.prefix + node["topic"], materialized=kept)
        history = node["history_retention_ms"]
        materialized: Any = Materialized.versioned(
            f"{self.prefix}{node['id']}-versioned", history=history
        )
        return self.builder.table(self.prefix + node["topic"], materialized=materialized)

    def _global_table(self, node: Node) -> Any:
        return self.builder.global_table(self.prefix + node["topic"])

    def _filter(self, node: Node) -> Any:
        return self._in(node).filter(f.PREDICATES[node["fn"]], *self._kept_if_said(node))

    def _filter_not(self, node: Node) -> Any:
        return self._in(node).filter_not(f.PREDICATES[node["fn"]], *self._kept_if_said(node))

    def _map(self, node: Node) -> Any:
        return self._in(node).map(f.PAIRS[node["fn"]])

    def _map_values(self, node: Node) -> Any:
        kept = self._kept_if_said(node)
        return self._in(node).map_values(f.VALUES[node["fn"]], *kept, with_key=True)

    def _flat_map(self, node: Node) -> Any:
        return self._in(node).flat_map(f.FLAT_MAPS[node["fn"]])

    def _flat_map_values(self, node: Node) -> Any:
        return self._in(node).flat_map_values(f.FLAT_VALUES[node["fn"]], with_key=True)

    def _select_key(self, node: Node) -> Any:
        return self._in(node).select_key(f.KEYS[node["fn"]])

    def _merge(self, node: Node) -> Any:
        first, *others = self._in(node)
        for other in others:
            first = first.merge(other)
        return first

    def _repartition(self, node: Node) -> Any:
        return self._in(node).repartition()

    def _to_table(self, node: Node) -> Any:
        return self._in(node).to_table(*self._kept_if_said(node))

    def _to_stream(self, node: Node) -> Any:
        mapper = f.KEYS[node["fn"]] if node.get("fn") else None
        return self._in(node).to_stream(mapper)

    def _split(self, node: Node) -> None:
        parts = self._in(node).split(named=f"{self.prefix}{node['id']}-")
        for branch in node["branches"]:
            parts = parts.branch(f.PREDICATES[branch["fn"]], Branched.as_(branch["as"]))
        default = node.get("default")
        streams = parts.default_branch(Branched.as_(default)) if default else {}
        streams = streams or parts.no_default_branch()
        for name, stream in streams.items():
            self.made[name.removeprefix(f"{self.prefix}{node['id']}-")] = stream

    def _process(self, node: Node) -> Any:
        clock = {"wall": "wall_clock_time", "stream": "stream_time"}[node["clock"]]
        store = f"{self.prefix}total"
        self.builder.add_state_store(StoreSpec(name=store))
        return self._in(node).process(
            lambda: _Total(node["fn"], clock, node["interval_ms"], store), store
        )

    def _stream_stream_join(self, node: Node) -> Any:
        left, right = self._in(node)
        window = node["window"]
        windows = JoinWindows(window["before_ms"], window["after_ms"], window.get("grace_ms", 0))
        method = _by_type(left, node)
        return method(right, f.JOINERS[node["joiner"]], windows)

    def _stream_table_join(self, node: Node) -> Any:
        left, table = self._in(node)
        joined: list[Any] = [Joined(grace=node["grace_ms"])] if "grace_ms" in node else []
        return _by_type(left, node)(table, f.JOINERS[node["joiner"]], *joined)

    def _stream_global_join(self, node: Node) -> Any:
        left, table = self._in(node)
        return _by_type(left, node)(table, f.KEYS[node["key_fn"]], f.JOINERS[node["joiner"]])

    def _table_table_join(self, node: Node) -> Any:
        left, right = self._in(node)
        kept = self._kept(node, default=True)
        return _by_type(left, node)(right, f.JOINERS[node["joiner"]], kept)

    def _fk_join(self, node: Node) -> Any:
        left, right = self._in(node)
        foreign_key = f.FOREIGN_KEYS[node["fk"]]
        kept = self._kept(node, default=False)
        return _by_type(left, node)(right, f.JOINERS[node["joiner"]], kept, foreign_key=foreign_key)

    def _suppress(self, node: Node) -> Any:
        if node.get("until") == "window_close":
            suppressed = Suppressed.until_window_closes()
        else:
            suppressed = Suppressed.until_time_limit(node.get("time_ms", 2**62))
        if "max_records" in node:
            suppressed = suppressed.with_max_records(node["max_records"])
        return self._in(node).suppress(suppressed)

    def _aggregate(self, node: Node) -> Any:
        source = self._in(node)
        materialized = _materialized(node)
        if isinstance(source, KTable):
            return _aggregate_table(source, node, materialized)
        grouped = self._grouped(source, node)
        if "window" in node:
            grouped = grouped.windowed_by(_windows(node["window"]))
            if node.get("emit") == "close":
                grouped = grouped.emit_strategy(EmitStrategy.on_window_close())
        if node["agg"] == "count":
            return grouped.count(materialized)
        if node["agg"] == "reduce":
            return grouped.reduce(f.REDUCERS[node["fn"]], materialized)
        arguments: list[Any] = [_constant(node["init"]), f.AGGREGATORS[node["fn"]]]
        if node.get("window", {}).get("type") == "session":
            arguments.append(_merger(node))
        return grouped.aggregate(*arguments, materialized)

    def _grouped(self, source: KStream[Any, Any], node: Node) -> Any:
        by = node.get("group_by", "key")
        return source.group_by_key() if by == "key" else source.group_by(f.KEYS[by])

    def _cogroup(self, node: Node) -> Any:
        first, *others = [stream.group_by_key() for stream in self._in(node)]
        aggregators = [f.AGGREGATORS[name] for name in node["fns"]]
        cogrouped = first.cogroup(aggregators[0])
        for other, aggregator in zip(others, aggregators[1:], strict=True):
            cogrouped = cogrouped.cogroup(other, aggregator)
        initializer = _constant(node["init"])
        if "window" not in node:
            return cogrouped.aggregate(initializer, _materialized(node))
        merger = _merger(node) if "merge" in node else None
        windowed = cogrouped.windowed_by(_windows(node["window"]))
        return windowed.aggregate(initializer, merger, _materialized(node))


def _aggregate_table(table: Any, node: Node, materialized: Any) -> Any:
    grouped = table.group_by(f.PAIRS[node["group_by"]])
    if node["agg"] == "count":
        return grouped.count(materialized)
    if node["agg"] == "reduce":
        return grouped.reduce(f.REDUCERS[node["fn"]], f.REDUCERS[node["remove"]], materialized)
    add, remove = f.AGGREGATORS[node["fn"]], f.AGGREGATORS[node["remove"]]
    return grouped.aggregate(_constant(node["init"]), add, remove, materialized)


def _by_type(left: Any, node: Node) -> Callable[..., Any]:
    names = {"inner": "join", "left": "left_join", "outer": "outer_join"}
    method: Callable[..., Any] = getattr(left, names[node["type"]])
    return method


def _materialized(node: Node) -> Any:
    return Materialized(caching=True) if node.get("caching") else None


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _merger(node: Node) -> Callable[[Any, Any, Any], Any]:
    reducer = f.REDUCERS[node["merge"]]
    return lambda _, one, other: reducer(one, other)


def _windows(window: Node) -> Any:
    grace = window.get("grace_ms", 0)
    match window["type"]:
        case "time":
            size: int = window["size_ms"]
            return TimeWindows(size, window.get("advance_ms", size), grace)
        case "sliding":
            return SlidingWindows(window["diff_ms"], grace)
        case _:
            return SessionWindows(window["gap_ms"], grace)


class _Total(Processor[Any, Any, Any, Any]):
    """Keeps a running total, and forwards the time at each punctuation."""

    def __init__(self, function: str | None, clock: Any, interval: int, store: str) -> None:
        self._function = function
        self._clock = clock
        self._interval = interval
        self._store = store

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule(
            self._interval, self._clock, lambda now: context.forward(Record(-1, now, now))
        )

    def process(self, record: Record[Any, Any]) -> None:
        if self._function == "running_total":
            store = self.context.state_store(self._store)
            total = (store.get("total") or 0) + record.value
            store.put("total", total)
            self.context.forward(Record(record.key * 2, total, record.timestamp))
