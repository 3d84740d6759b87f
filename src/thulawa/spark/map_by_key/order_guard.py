"""Reject plans that break the order of a key before the engine sees it.

The engine preserves the order in which the rows of a partition arrive. That is the order of a key
only if all rows of the key are in one partition, if no operator shuffles them, and if no task runs
twice concurrently. What the plan does not show is left to the user, with a warning.
"""

import json
import warnings
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from thulawa.errors import ConfigurationError
from thulawa.spark.internals import analyzed_plan, plan_nodes, query_execution, scala_items
from thulawa.spark.map_by_key.operator import Operator
from thulawa.spark.map_by_key.source_order import (
    is_one_slice,
    keeps_order_when_coalesced,
    reads_files,
    source_name,
)
from thulawa.topology.determinism import nondeterminism_of

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
    """Raise `ConfigurationError` if rows of a key may reach the operator out of order."""
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
    """Return the name of an operator in Spark's plan, with the columns whose order it preserves.

    A later operator reads it from the plan. No columns: all rows stay in order; null: none do.
    ``flat``: it may return several rows for one. ``deterministic``: its function is known to answer
    the same in a rerun of a micro-batch.
    """
    options = operator.options
    kept: tuple[str, ...] | None = operator.keys
    if options.emit == "partition" or options.order == "partition":
        kept = ()
    elif _has_no_order(operator):
        kept = None
    about = {
        "name": operator.name,
        "in_order": kept,
        "flat": operator.flat,
        "deterministic": nondeterminism_of(operator.function) is None,
    }
    return _TITLE + json.dumps(about)


def name_earlier_operators(rows: DataFrame, plan_of: DataFrame) -> DataFrame:
    """Return ``rows`` with the names of the operators in another DataFrame's plan.

    For rows whose own plan has lost them, because a local checkpoint begins a new plan.
    """
    for node in plan_nodes(analyzed_plan(plan_of), until="Sort"):
        if (earlier := operator_in(node)) is not None:
            rows = rows.alias(_TITLE + json.dumps(earlier))
    return rows


def refuse_speculation(df: DataFrame, operator: Operator) -> None:
    """Raise `ConfigurationError` if calls of a key could run in two tasks at once."""
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
        if (earlier := operator_in(node)) is not None:
            _refuse_behind(earlier, operator)


def _shuffles(node: Any) -> str | None:
    """Return a description of a node that moves rows between partitions; None for others."""
    name = str(node.nodeName())
    if any(part in name for part in _GROUPING_NODES):
        return "a function over groups"
    return None if _merely_joins_partitions(node) else _SHUFFLING_NODES.get(name)


def operator_in(node: Any) -> dict[str, Any] | None:
    """Return the earlier operator that a node names (`title_of`, `name_earlier_operators`)."""
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
    """Raise if an earlier operator may have reordered rows of a key."""
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
    """Raise if rows of a key may be in several partitions; warn if that is not known."""
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
    # made by the user, or by foreachBatch: it may be partitioned by key
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
        return (
            "Spark reads files and tables in an order of its own, which coalesce() does not change"
        )
    if not all(is_one_slice(df, source) for source in sources if reads_files(source)):
        return "Spark reads several files in an order of its own"
    return None


def _can_be_coalesced(source: Any) -> bool:
    return source_name(source) in _KEEPING_SOURCES or keeps_order_when_coalesced(source)


def _sorts(plan: Any) -> bool:
    """Return whether an earlier operator sorts rows, an order that `coalesce` ignores."""
    return any(node.nodeName() == "Sort" for node in plan_nodes(plan))


def _warn(operator: Operator, reason: str) -> None:
    warnings.warn(f"{operator.name}: {reason}", stacklevel=2)


def _partitions(df: DataFrame, keys: tuple[str, ...]) -> int | None:
    """Return the number of partitions that may share a key; None if it is not known."""
    execution = query_execution(df)
    partitioning = execution.sparkPlan().outputPartitioning()
    kind = partitioning.getClass().getSimpleName()
    if kind == "SinglePartition$" or (kind == "HashPartitioning" and _by(partitioning, keys)):
        return 1
    if execution.executedPlan().getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        return None  # known only after it has run
    return int(execution.toRdd().getNumPartitions())


def _by(partitioning: Any, keys: tuple[str, ...]) -> bool:
    """Return whether rows are hash-partitioned by columns of the key only."""
    hashed = {column.sql().strip("`") for column in scala_items(partitioning.expressions())}
    return hashed <= set(keys)


def _ends_in_one_partition(plan: Any) -> bool:
    """Return whether a coalesce brings all rows into one partition."""
    return any(_merely_joins_partitions(node) and node.numPartitions() == 1 for node in _line(plan))


def _merely_joins_partitions(node: Any) -> bool:
    """Return whether a node is a coalesce, which reads partitions one after the other."""
    return bool(node.nodeName() == "Repartition" and not node.shuffle())


def _line(plan: Any) -> Iterator[Any]:
    """Yield the nodes from the last one to the first that branches or reads."""
    yield plan
    while plan.children().size() == 1:
        plan = plan.children().apply(0)
        yield plan


def _splitting_options(node: Any) -> list[str]:
    """Return the options of a source node that split its partitions."""
    match node.nodeName():
        case "StreamingRelationV2":
            options = node.extraOptions()
        case "DataSourceV2Relation":
            options = node.options()
        case _:
            return []
    return [option for option in _SPLITTING_OPTIONS if options.containsKey(option)]
