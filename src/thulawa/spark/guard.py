"""Refuse plans that break the order of a key before the engine sees it.

The engine keeps the order in which the rows of a partition reach it. That is the order of a key
only if all rows of the key are in one partition, if nothing on the way shuffles them, and if no
task runs twice at a time. What cannot be known from the plan is left to the user, with a warning.
"""

import json
import warnings
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from thulawa.core.errors import ConfigurationError
from thulawa.spark.operator import Operator

__all__ = ["refuse_broken_order", "refuse_moving_tasks", "refuse_speculation", "title_of"]

_SPLITTING_OPTIONS = ("minPartitions", "maxRecordsPerPartition")
_KEEPING_SOURCES = {
    "thulawa",
    "thulawa-kafka",
    "kafka",
    "KafkaTable",
}  # a key is in one partition of its topic
_SHUFFLING_NODES = {
    "Repartition": "a repartition",
    "RepartitionByExpression": "a repartition",
    "Join": "a join",
    "Aggregate": "an aggregation",
    "Distinct": "a distinct",
    "Deduplicate": "a deduplication",
    "DeduplicateWithinWatermark": "a deduplication",
    "Intersect": "an intersection",
    "Except": "a difference",
    "RebalancePartitions": "a rebalance",
}
_GROUPING_NODES = ("Groups", "WithState")  # parts of the names of functions over groups
_TITLE = "thulawa "
_CURE = (
    "use repartition=True with order_by, coalesce(1) for one partition, or order='none' if order "
    "does not matter"
)
_STREAMING_CURE = (
    "use coalesce(1) for one partition, map_by_key(repartition=True, order_by=…) in foreachBatch, "
    "or order='none' if order does not matter"
)


def refuse_broken_order(df: DataFrame, operator: Operator) -> None:
    """Raise where rows of a key may not reach the operator in their order."""
    if _has_no_order(operator):
        return
    plan = df._jdf.queryExecution().analyzed()  # noqa: SLF001 the plan's only door
    for node in _nodes(plan):
        for option in _splitting_options(node):
            _refuse(operator, f"the source option {option} splits a partition; leave it out")
    _refuse_shuffled_rows(plan, operator)
    if operator.keys:
        _refuse_scattered_keys(df, plan, operator)


def title_of(operator: Operator) -> str:
    """Name an operator in Spark's plan, with the columns whose rows stay in their order.

    The plan is all that is left of it where another operator comes behind it. No columns: all
    rows stay in order; null: none does.
    """
    options = operator.options
    kept: tuple[str, ...] | None = operator.keys
    if options.emit == "partition" or options.order == "partition":
        kept = ()
    elif _has_no_order(operator):
        kept = None
    return _TITLE + json.dumps({"name": operator.name, "in_order": kept})


def refuse_speculation(df: DataFrame, operator: Operator) -> None:
    """Raise where a key's calls could be under way in two tasks at a time."""
    if _speculates(df) and not _has_no_order(operator):
        _refuse(operator, "spark.speculation runs a task twice at a time; switch it off")


def refuse_moving_tasks(df: DataFrame) -> None:
    """Raise where a batch that is run again may have other rows in a task: sinks tell by the task.

    Such a sink takes a task's rows for written that another task had.
    """
    if _speculates(df):
        raise ConfigurationError(
            "spark.speculation runs a task twice at a time, and each would fence the other"
        )
    conf = df.sparkSession.conf
    nodes = list(_nodes(df._jdf.queryExecution().analyzed()))  # noqa: SLF001
    adaptive = ("spark.sql.adaptive.enabled", "spark.sql.adaptive.streaming.stateless.enabled")
    if any(map(_shuffles, nodes)) and all(conf.get(name, "true") == "true" for name in adaptive):
        raise ConfigurationError(
            f"{adaptive[1]} moves rows between tasks as it sees fit; set it to false, or leave it "
            "to thulawa.session()"
        )
    sources = [node for node in nodes if node.nodeName() == "StreamingRelationV2"]
    if any(node.sourceName() == "kafka" for node in sources):
        raise ConfigurationError(
            "Spark's reader of Kafka may give the partitions of a topic to other tasks after a "
            "restart; read with kafka_source instead"
        )


def _speculates(df: DataFrame) -> bool:
    return df.sparkSession.conf.get("spark.speculation", "false") == "true"


def _has_no_order(operator: Operator) -> bool:
    options = operator.options
    keyless = options.order in ("key", "emit") and not operator.keys
    return options.order == "none" or (keyless and options.unkeyed == "parallel")


def _refuse(operator: Operator, reason: str) -> None:
    raise ConfigurationError(f"{operator.name}: {reason}")


def _refuse_shuffled_rows(plan: Any, operator: Operator) -> None:
    for node in _nodes(plan, until="Sort"):  # a sort makes an order of its own
        if (shuffles := _shuffles(node)) is not None:
            _refuse(
                operator,
                f"{shuffles} before it changes the order of rows; use repartition=True with "
                "order_by, or order='none' if order does not matter",
            )
        if (earlier := _operator_in(node)) is not None:
            _refuse_behind(earlier, operator)


def _shuffles(node: Any) -> str | None:
    """Say what a node is that moves rows between partitions."""
    name = str(node.nodeName())
    if any(part in name for part in _GROUPING_NODES):
        return "a function over groups"
    return None if _merely_joins_partitions(node) else _SHUFFLING_NODES.get(name)


def _operator_in(node: Any) -> dict[str, Any] | None:
    """Give what `title_of` told of an operator that comes before."""
    if node.nodeName() != "MapInArrow" or not (title := _function_name(node)).startswith(_TITLE):
        return None
    told: dict[str, Any] = json.loads(title.removeprefix(_TITLE))
    return told


def _function_name(node: Any) -> str:
    function = node.functionExpr()
    return str(function.name()) if function.nodeName() == "PythonUDF" else ""


def _refuse_behind(earlier: dict[str, Any], operator: Operator) -> None:
    """Refuse rows of which an operator before let some pass others of the same key."""
    kept = earlier["in_order"]
    of = () if operator.options.order == "partition" else operator.keys
    if kept is None or not set(kept) <= set(of):
        _refuse(
            operator,
            f"rows may have passed each other in {earlier['name']}, which keeps "
            f"{'no order' if kept is None else f'the order by {kept}'}; give that one "
            "emit='partition'",
        )


def _refuse_scattered_keys(df: DataFrame, plan: Any, operator: Operator) -> None:
    """Raise, or warn where it cannot be known, if rows of a key may be in several partitions."""
    nodes = list(_nodes(plan))
    sources = [node for node in nodes if node.children().isEmpty()]
    names = {_source_name(node) for node in sources}
    if _ends_in_one_partition(plan) or (len(sources) == 1 and names <= _KEEPING_SOURCES):
        return
    if df.isStreaming:
        if len(sources) == 1 and not any(name.startswith("FileSource") for name in names):
            _warn(operator, f"the source {names.pop()!r} may not keep a key in one partition")
            return
        what = "a union" if len(sources) > 1 else "a source of files"
        _refuse(operator, f"{what} has rows of a key in several partitions; {_STREAMING_CURE}")
    elif (count := _partitions(df, operator.keys)) != 1:
        reason = f"the input has {count or 'several'} partitions, and rows of a key in any of them"
        if names == {"LogicalRDD"}:  # made by the user, or what foreachBatch is given
            _warn(operator, f"it cannot be seen whether {reason}")
        else:
            _refuse(operator, f"{reason}; {_CURE}")


def _warn(operator: Operator, reason: str) -> None:
    warnings.warn(f"{operator.name}: {reason}; if so, {_CURE}", stacklevel=2)


def _partitions(df: DataFrame, keys: tuple[str, ...]) -> int | None:
    """Count partitions that may share a key, without running anything; None for some."""
    execution = df._jdf.queryExecution()  # noqa: SLF001
    partitioning = execution.sparkPlan().outputPartitioning()
    kind = partitioning.getClass().getSimpleName()
    if kind == "SinglePartition$" or (kind == "HashPartitioning" and _by(partitioning, keys)):
        return 1
    if execution.executedPlan().getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        return None  # how many there are is known only when it has run
    return int(execution.toRdd().getNumPartitions())


def _by(partitioning: Any, keys: tuple[str, ...]) -> bool:
    """Tell whether rows are hashed by nothing but columns of the key."""
    columns = partitioning.expressions()
    hashed = {columns.apply(place).sql().strip("`") for place in range(columns.size())}
    return hashed <= set(keys)


def _ends_in_one_partition(plan: Any) -> bool:
    """Tell whether all rows are brought into one partition, one old partition after the other."""
    return any(_merely_joins_partitions(node) and node.numPartitions() == 1 for node in _line(plan))


def _merely_joins_partitions(node: Any) -> bool:
    """Tell a coalesce, which reads one partition after the other, from a repartition."""
    return bool(node.nodeName() == "Repartition" and not node.shuffle())


def _line(plan: Any) -> Iterator[Any]:
    """Give the nodes from the last one to where the plan branches, or begins."""
    yield plan
    while plan.children().size() == 1:
        plan = plan.children().apply(0)
        yield plan


def _nodes(plan: Any, until: str = "") -> Iterator[Any]:
    """Give the nodes of a plan from the last one on, down to those that are named ``until``."""
    if plan.nodeName() == until:
        return
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index), until)


def _source_name(node: Any) -> str:
    """Give the name of a source, or the kind of the node where it has none."""
    match kind := str(node.nodeName()):
        case "StreamingRelationV2" | "StreamingRelation":
            return str(node.sourceName())
        case "DataSourceV2Relation":
            return str(node.table().name())
        case _:
            return kind


def _splitting_options(node: Any) -> list[str]:
    """Name the options of a source node that split its partitions; none where it is no source."""
    match node.nodeName():
        case "StreamingRelationV2":
            options = node.extraOptions()
        case "DataSourceV2Relation":
            options = node.options()
        case _:
            return []
    return [option for option in _SPLITTING_OPTIONS if options.containsKey(option)]
