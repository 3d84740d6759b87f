"""Accept only plans that have each row in the same task when a micro-batch is run again.

A sink that writes exactly once knows what is written by query, micro-batch and task. So a row must
be in the same task when its micro-batch is run again, in another driver, on other hosts, with other
settings. Of Spark's operators (4.2) only these are known to keep to that (ADR 0044):

- sources of `STABLE_SOURCES`: the offset log records the tasks of a micro-batch;
- narrow operators (`_NARROW`): each task reads the task of the same number before it;
- coalesce(1) and repartition(1): there is one task, so what precedes it does not matter;
- stateful operators: a row's task is the hash of its key, modulo a number of partitions that the
  checkpoint holds. Functions before them must be deterministic (`topology.determinism`): with
  another key in a rerun, two tasks may have written the row, or neither;
- union: tasks of the inputs in their order, one after the other;
- join with a broadcast static table: a task of the stream has its rows joined where they are.

Other operators go by hosts, cores, statistics, samples or settings of a run, and are rejected.
"""

from hashlib import blake2b
from typing import Any

from pyspark.sql import DataFrame

from thulawa.errors import ConfigurationError
from thulawa.spark.internals import analyzed_plan, plan_children, plan_nodes, scala_items
from thulawa.spark.map_by_key.order_guard import operator_in

STABLE_SOURCES = frozenset({"thulawa", "thulawa-packed", "thulawa-kafka", "thulawa-kafka-packed"})
_ORDERED = frozenset({"Project", "Filter", "SubqueryAlias", "View", "EventTimeWatermark",
                      "CollectMetrics", "ResolvedHint", "Generate"})  # fmt: skip
_NARROW = _ORDERED | {"Sample", "MapInArrow", "MapInPandas", "MapPartitions",
                      "MapElements", "DeserializeToObject", "SerializeFromObject"}  # fmt: skip
_OVER_GROUPS = frozenset({"FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState",
                          "TransformWithState", "TransformWithStateInPandas",
                          "TransformWithStateInPySpark"})  # fmt: skip
_STATEFUL = _OVER_GROUPS | {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct"}
_FUNCTIONS = _OVER_GROUPS | {"MapInArrow", "MapInPandas", "MapPartitions", "MapElements"}
_MULTIPLYING = _STATEFUL | {"Generate", "Expand", "MapInArrow", "MapInPandas", "MapPartitions",
                            "FlatMapGroupsInPandas", "FlatMapGroupsInArrow"}  # fmt: skip
_BROADCAST_JOINS = frozenset({"Inner", "LeftOuter", "LeftSemi", "LeftAnti"})
_THROUGH_A_TOPIC = "Write the rows to a topic by that key and read them from there"
_LONGEST = 100  # characters: a marker has room for little


def task_layout(df: DataFrame, *, deterministic: bool = False) -> str:
    """Return how the tasks of a streaming DataFrame get their rows: the same text, the same tasks.

    Raise `ConfigurationError` if a rerun of a micro-batch may have a row in another task.
    ``deterministic``: all functions in the plan are known to answer the same in a rerun.
    """
    if df.sparkSession.conf.get("spark.speculation", "false") == "true":
        raise ConfigurationError(
            "spark.speculation runs a task twice at a time, and each attempt would fence the "
            "other; switch it off"
        )
    plan = analyzed_plan(df)
    text = _layout(plan)
    if not deterministic:
        _check_deterministic(plan)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}…{blake2b(text.encode(), digest_size=8).hexdigest()}"


def row_positions(df: DataFrame) -> str | None:
    """Return an identifier of the plan if every run has a row at the same position in its task.

    Return None if that may differ or is not known. This is stricter than `task_layout`: no operator
    may reorder, add or remove rows within a task, so a changed plan has another identifier.
    """
    node = analyzed_plan(df)
    text = []
    while node.nodeName() in _ORDERED and node.deterministic() and node.subqueries().isEmpty():
        text += [str(node.nodeName()), *(one.sql() for one in scala_items(node.expressions()))]
        node = node.children().apply(0)
    if not _is_stable_source(node):
        return None
    text.append(str(node.sourceName()))
    return f"rows {blake2b(repr(text).encode(), digest_size=8).hexdigest()}"


def keeps_record_rows_together(df: DataFrame) -> bool:
    """Return whether all rows that come from one record of a source are in one task.

    They are not if a union or join repeats a record, nor if an operator that may return several
    rows for one comes before an operator that moves rows between tasks.
    """
    node = analyzed_plan(df)
    moved = False
    while node.children().size() == 1:
        if moved and _may_multiply(node):
            return False
        moved = moved or not _is_narrow(node)
        node = node.children().apply(0)
    return bool(node.children().isEmpty())


def _may_multiply(node: Any) -> bool:
    operator = operator_in(node)
    return node.nodeName() in _MULTIPLYING if operator is None else bool(operator["flat"])


def _layout(node: Any) -> str:
    name = str(node.nodeName())
    if _is_stable_source(node):
        return str(node.sourceName())
    if name in _STATEFUL and node.isStreaming():
        return "stateful"
    if _is_one_task(node):
        return "one"
    if _is_narrow(node):
        return _layout(node.children().apply(0))
    if name == "Union":
        return f"union({','.join(map(_layout, plan_children(node)))})"
    if name == "Join":
        return _joined(node)
    raise _rejection(node)


def _check_deterministic(plan: Any) -> None:
    """Raise where the key of a stateful operator may be another when a batch is run again."""
    if _is_one_task(plan):
        return
    name, inputs = str(plan.nodeName()), plan_children(plan)
    if name in _STATEFUL or (name == "Join" and all(one.isStreaming() for one in inputs)):
        _check_functions(plan, name)
    for child in inputs:
        _check_deterministic(child)


def _check_functions(stateful: Any, name: str) -> None:
    below = [node for child in plan_children(stateful) for node in plan_nodes(child)]
    for node in below:
        kind = str(node.nodeName())
        earlier = operator_in(node)
        if earlier is not None and not earlier.get("deterministic"):
            raise _differs(
                f"{earlier['name']}, in front of {name},",
                "Declare its function with @thulawa.deterministic if it does not",
            )
        if earlier is None and kind in _FUNCTIONS:
            raise _differs(f"{kind}, in front of {name},", "Compute it with Spark's expressions")
    if not all(child.deterministic() for child in plan_children(stateful)):
        raise _differs(f"an expression in front of {name}, such as rand(),", "Leave it out")


def _differs(what: str, cure: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} may answer differently when a micro-batch is run again, and rows then have "
        f"another key: a sink that writes exactly once would lose or double them.\n{cure}, or "
        "write its rows to a topic and read them from there"
    )


def _is_narrow(node: Any) -> bool:
    """Return whether each task only reads the task of the same number."""
    name = str(node.nodeName())
    sorts_tasks = name == "Sort" and not getattr(node, "global")()
    return (name in _NARROW or sorts_tasks) and bool(node.subqueries().isEmpty())


def _is_stable_source(node: Any) -> bool:
    return node.nodeName() == "StreamingRelationV2" and str(node.sourceName()) in STABLE_SOURCES


def _joined(node: Any) -> str:
    left, right = plan_children(node)
    if left.isStreaming() and right.isStreaming():
        return "stateful"
    if str(node.joinType()) in _BROADCAST_JOINS and left.isStreaming() and _is_broadcast(right):
        return _layout(left)
    raise _rejection(node)


def _is_broadcast(node: Any) -> bool:
    while node.nodeName() != "ResolvedHint" and node.children().size() == 1:
        node = node.children().apply(0)
    return node.nodeName() == "ResolvedHint" and str(node.hints().strategy()) == "Some(broadcast)"


def _is_one_task(node: Any) -> bool:
    """Return whether a node brings all rows into one task, by a number that the plan names."""
    if node.nodeName() == "Repartition":
        return bool(node.numPartitions() == 1)
    if node.nodeName() != "RepartitionByExpression":
        return False
    count = node.optNumPartitions()
    return count.isDefined() and int(count.get()) == 1


def _rejection(node: Any) -> ConfigurationError:
    what, cure = _described(node)
    return ConfigurationError(
        f"{what} may put rows into other tasks when a micro-batch is run again, and a sink that "
        "writes exactly once goes by tasks: rows would be lost or written twice.\n"
        f"{cure}; or bring all rows into one task with coalesce(1) behind it"
    )


def _described(node: Any) -> tuple[str, str]:
    """Return what moves rows, and what to do instead."""
    what = f"the operator {node.nodeName()}"
    cure = "Leave it out"
    if not node.subqueries().isEmpty():
        what, cure = "a subquery", "Join the stream with broadcast(table)"
    match str(node.nodeName()):
        case "StreamingRelationV2" | "StreamingRelation" if str(node.sourceName()) == "kafka":
            what, cure = "Spark's reader of Kafka", "Read with kafka_source instead"
        case "StreamingRelationV2" | "StreamingRelation":
            what, cure = f"the source {node.sourceName()!s:.60}", "Write its rows to a topic first"
        case "Repartition" if not node.shuffle():
            what = f"coalesce({node.numPartitions()})"
            cure = "Leave it out, set maxPartitions of the source"
        case "Repartition" | "RepartitionByExpression" | "RebalancePartitions":
            what, cure = "a repartition", _THROUGH_A_TOPIC
        case "FlatMapGroupsInPandas" | "FlatMapGroupsInArrow":
            what, cure = "a function over groups", _THROUGH_A_TOPIC
        case "Join":
            what = "a join with a table"
            cure = "Join the stream, on the left, with broadcast(table), inner or left"
    return what, cure
