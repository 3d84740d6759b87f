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
from thulawa.spark.internals import analyzed_plan, plan_nodes, query_execution, scala_items
from thulawa.spark.map_by_key.operator import Operator
from thulawa.spark.map_by_key.source_order import (
    is_one_slice,
    keeps_order_when_coalesced,
    reads_files,
    source_name,
)

__all__ = [
    "name_earlier_operators",
    "refuse_broken_order",
    "refuse_speculation",
    "title_of",
]

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
_IN_BATCHES = "use repartition=True with order_by=…"
_IN_STREAMS = "call map_by_key(repartition=True, order_by=…) inside foreachBatch"
_JOINED = "coalesce(1) for one partition"
_NO_ORDER = "or order='none' if order does not matter"


def refuse_broken_order(df: DataFrame, operator: Operator) -> None:
    """Raise where rows of a key may not reach the operator in their order."""
    if _has_no_order(operator):
        return
    plan = analyzed_plan(df)
    for node in plan_nodes(plan):
        for option in _splitting_options(node):
            _refuse(operator, f"the source option {option} splits a partition; leave it out")
    _refuse_shuffled_rows(df, plan, operator)
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


def name_earlier_operators(rows: DataFrame, plan_of: DataFrame) -> DataFrame:
    """Return ``rows`` with the operators of another DataFrame's plan named in theirs.

    For rows whose own plan has lost them: a checkpoint begins a new plan.
    """
    for node in plan_nodes(analyzed_plan(plan_of), until="Sort"):
        if (earlier := _operator_in(node)) is not None:
            rows = rows.alias(_TITLE + json.dumps(earlier))
    return rows


def refuse_speculation(df: DataFrame, operator: Operator) -> None:
    """Raise where a key's calls could be under way in two tasks at a time."""
    if _speculates(df) and not _has_no_order(operator):
        _refuse(operator, "spark.speculation runs a task twice at a time; switch it off")


def _speculates(df: DataFrame) -> bool:
    return df.sparkSession.conf.get("spark.speculation", "false") == "true"


def _has_no_order(operator: Operator) -> bool:
    options = operator.options
    keyless = options.order in ("key", "emit") and not operator.keys
    return options.order == "none" or (keyless and options.unkeyed == "parallel")


def _refuse(operator: Operator, reason: str) -> None:
    raise ConfigurationError(f"{operator.name}: {reason}")


def _refuse_shuffled_rows(df: DataFrame, plan: Any, operator: Operator) -> None:
    cure = _IN_STREAMS if df.isStreaming else _IN_BATCHES
    for node in plan_nodes(plan, until="Sort"):  # a sort makes an order of its own
        if (shuffles := _shuffles(node)) is not None:
            _refuse(
                operator, f"{shuffles} before it changes the order of rows; {cure}, {_NO_ORDER}"
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
    """Return what `title_of` or `name_earlier_operators` wrote of an operator that comes before."""
    match node.nodeName():
        case "MapInArrow":
            function = node.functionExpr()
            title = str(function.name()) if function.nodeName() == "PythonUDF" else ""
        case "SubqueryAlias":
            title = str(node.alias())
        case _:
            return None
    if not title.startswith(_TITLE):
        return None
    told: dict[str, Any] = json.loads(title.removeprefix(_TITLE))
    return told


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
    sources = [node for node in plan_nodes(plan) if node.children().isEmpty()]
    if len(sources) == 1 and source_name(sources[0]) in _KEEPING_SOURCES:
        return
    if df.isStreaming:
        _refuse_scattered_stream(plan, sources, operator)
    else:
        _refuse_scattered_batch(df, plan, sources, operator)


def _refuse_scattered_stream(plan: Any, sources: list[Any], operator: Operator) -> None:
    names = [source_name(source) for source in sources]
    if any(map(reads_files, sources)):
        _refuse(
            operator,
            f"a source of files gives rows in an order of its own; {_IN_STREAMS}, {_NO_ORDER}",
        )
    elif len(sources) > 1 and not _ends_in_one_partition(plan):
        _refuse(
            operator,
            "a union has rows of a key in several partitions; "
            f"use {_JOINED}, {_IN_STREAMS}, {_NO_ORDER}",
        )
    elif unknown := [name for name in names if name not in _KEEPING_SOURCES]:
        _warn(
            operator,
            f"the source {unknown[0]!r} may not keep a key in one partition; if so, {_IN_STREAMS}",
        )


def _refuse_scattered_batch(
    df: DataFrame, plan: Any, sources: list[Any], operator: Operator
) -> None:
    coalesced = _ends_in_one_partition(plan)
    count = 1 if coalesced else _partitions(df, operator.keys)
    if count == 1:
        if (reason := _lost_row_order(df, plan, sources, coalesced=coalesced)) is not None:
            _refuse(operator, f"{reason}; {_IN_BATCHES}, {_NO_ORDER}")
        return
    reason = f"the input has {count or 'several'} partitions, and rows of a key in any of them"
    cure = f"{_IN_BATCHES}, {_NO_ORDER}"
    if all(map(_can_be_coalesced, sources)) and not _sorts(plan):
        cure = f"{_IN_BATCHES}, {_JOINED}, {_NO_ORDER}"
    if any(source.nodeName() != "LogicalRDD" or reads_files(source) for source in sources):
        _refuse(operator, f"{reason}; {cure}")
    # made by the user, or what foreachBatch is given: it may be hashed by key
    _warn(operator, f"it cannot be seen whether {reason}; if so, {cure}")


def _lost_row_order(df: DataFrame, plan: Any, sources: list[Any], *, coalesced: bool) -> str | None:
    """Return why rows in one partition, or hashed by key, have no order of their own."""
    for node in _line(plan):
        if node.nodeName() == "Sort":
            return None
        if _merely_joins_partitions(node):
            break
    if coalesced and _sorts(plan):
        return "coalesce() may join the partitions of a sort in another order"
    if coalesced and not all(map(_can_be_coalesced, sources)):
        return "Spark reads files and tables in an order of its own, which coalesce() does not mend"
    if not all(is_one_slice(df, source) for source in sources if reads_files(source)):
        return "Spark reads several files in an order of its own"
    return None


def _can_be_coalesced(source: Any) -> bool:
    return source_name(source) in _KEEPING_SOURCES or keeps_order_when_coalesced(source)


def _sorts(plan: Any) -> bool:
    """Return whether rows are sorted before; `coalesce` goes by where partitions are, not by it."""
    return any(node.nodeName() == "Sort" for node in plan_nodes(plan))


def _warn(operator: Operator, reason: str) -> None:
    warnings.warn(f"{operator.name}: {reason}", stacklevel=2)


def _partitions(df: DataFrame, keys: tuple[str, ...]) -> int | None:
    """Count partitions that may share a key, without running anything; None for some."""
    execution = query_execution(df)
    partitioning = execution.sparkPlan().outputPartitioning()
    kind = partitioning.getClass().getSimpleName()
    if kind == "SinglePartition$" or (kind == "HashPartitioning" and _by(partitioning, keys)):
        return 1
    if execution.executedPlan().getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        return None  # how many there are is known only when it has run
    return int(execution.toRdd().getNumPartitions())


def _by(partitioning: Any, keys: tuple[str, ...]) -> bool:
    """Tell whether rows are hashed by nothing but columns of the key."""
    hashed = {column.sql().strip("`") for column in scala_items(partitioning.expressions())}
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
