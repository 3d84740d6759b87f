"""The fields that a case may have. A case with a field that no code translates would prove nothing.

Every operator names its fields here; `check` refuses all others, before a case is run.
"""

from collections.abc import Iterable
from typing import Any

Entry = dict[str, Any]

CASE = frozenset(
    ("id", "operator", "topology", "outputs", "inputs", "expected", "order", "partitions")
) | {"source", "verified", "notes"}  # where a case comes from
RECORD = frozenset(("topic", "key", "value", "ts"))
CLOCK = frozenset(("advance_wall_clock_ms",))
EXPECTED = frozenset(("step", "node", "key", "value", "ts", "window", "redundant"))
ORDERS = ("total", "multiset_per_step")

_NODE = ("id", "op", "in")
_AGGREGATE = ("agg", "init", "fn", "group_by", "remove", "merge", "window", "emit", "caching")
NODES: dict[str, frozenset[str]] = {
    op: frozenset((*_NODE, *fields))
    for op, fields in {
        "stream": ("topic",),
        "table": ("topic", "versioned", "history_retention_ms", "materialized"),
        "global_table": ("topic",),
        "filter": ("fn", "materialized"),
        "filter_not": ("fn", "materialized"),
        "map": ("fn",),
        "map_values": ("fn", "materialized"),
        "flat_map": ("fn",),
        "flat_map_values": ("fn",),
        "select_key": ("fn",),
        "merge": (),
        "repartition": (),
        "to_table": ("materialized",),
        "to_stream": ("fn",),
        "split": ("branches", "default"),
        "process": ("fn", "clock", "interval_ms"),
        "stream_stream_join": ("type", "window", "joiner"),
        "stream_table_join": ("type", "joiner", "grace_ms"),
        "stream_global_join": ("type", "key_fn", "joiner"),
        "table_table_join": ("type", "joiner", "materialized"),
        "fk_join": ("type", "fk", "joiner", "materialized"),
        "suppress": ("until", "time_ms", "max_records"),
        "aggregate": _AGGREGATE,
        "cogroup": ("fns", "init", "merge", "window", "caching"),
    }.items()
}
WINDOWS: dict[str, frozenset[str]] = {
    "time": frozenset(("type", "size_ms", "advance_ms", "grace_ms")),
    "sliding": frozenset(("type", "diff_ms", "grace_ms")),
    "session": frozenset(("type", "gap_ms", "grace_ms")),
    "join": frozenset(("before_ms", "after_ms", "grace_ms")),
}
# fields whose value chooses between translations: any other value is refused
CHOICES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("aggregate", "agg"): ("count", "reduce", "aggregate"),
    ("aggregate", "emit"): ("update", "close"),
    ("suppress", "until"): ("window_close",),
    ("process", "clock"): ("stream", "wall"),
    ("process", "fn"): ("running_total", None),
}


class UnknownField(ValueError):
    """A case says something that the runner does not understand."""


def check(case: Entry) -> None:
    """Raise `UnknownField` if a case has a field or a choice that is not translated."""
    _check("the case", case, CASE)
    if case["order"] not in ORDERS:
        raise UnknownField(f"order is {case['order']!r}, not one of {ORDERS}")
    for entry in case["inputs"]:
        _check("an input", entry, CLOCK if "advance_wall_clock_ms" in entry else RECORD)
    for entry in case["expected"]:
        _check("an output", entry, EXPECTED)
    for node in case["topology"]:
        _check_node(node)


def _check_node(node: Entry) -> None:
    op, where = node["op"], f"node {node['id']!r} ({node['op']})"
    if op not in NODES:
        raise UnknownField(f"{where}: the operator is not known; known are {sorted(NODES)}")
    _check(where, node, NODES[op])
    if "window" in node:
        kind = "join" if op == "stream_stream_join" else node["window"].get("type")
        if kind not in WINDOWS:
            raise UnknownField(f"{where}: a window of type {kind!r} is not known")
        _check(f"the window of {where}", node["window"], WINDOWS[kind])
    for branch in node.get("branches", ()):
        _check(f"a branch of {where}", branch, ("fn", "as"))
    for (owner, name), values in CHOICES.items():
        if owner == op and name in node and node[name] not in values:
            raise UnknownField(f"{where}: {name} is {node[name]!r}, not one of {values}")


def _check(what: str, entry: Entry, known: Iterable[str]) -> None:
    unknown = sorted(set(entry) - set(known))
    if unknown:
        raise UnknownField(f"{what} has the unknown fields {unknown}; known are {sorted(known)}")
