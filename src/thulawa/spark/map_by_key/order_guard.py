"""Reject plans that break the order of a key before the engine sees it.

The engine preserves the order in which the rows of a partition arrive. That is the order of a key
only if all rows of the key are in one partition, if no operator shuffles them, and if no task runs
twice concurrently. What the plan does not show is left to the user, with a warning.

Spark splits files into slices, sorts these by size and distributes them over partitions. Rows are
in the order of a file only if there is one slice. `coalesce` does not restore the order: it joins
partitions, and the slices inside them stay as they are.
"""

import json
import warnings
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from thulawa.errors import ConfigurationError
from thulawa.spark.internals import analyzed_plan, plan_nodes, query_execution, scala_items
from thulawa.spark.map_by_key.operator import Operator
from thulawa.topology.determinism import nondeterminism_of

_SPLITTING_OPTIONS = ("minPartitions", "maxRecordsPerPartition")
# their keys are in one partition of a topic
_KEEPING_SOURCES = {"thulawa", "thulawa-kafka", "kafka", "KafkaTable"}
_ORDERED_PARTITIONS = {"Range", "LocalRelation", "OneRowRelation", "LogicalRDD"}
_FILE_RDD = "FileScanRDD"
_FILE_TABLES = ("ParquetTable", "OrcTable", "CSVTable", "JsonTable", "TextTable", "AvroTable")
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


def check_order(df: DataFrame, operator: Operator) -> None:
    """Raise `ConfigurationError` if rows of a key may reach the operator out of order."""
    if not _has_no_order(operator):
        for reason in _reasons(df, analyzed_plan(df), operator):
            raise ConfigurationError(f"{operator.name}: {reason}")


def check_speculation(df: DataFrame, operator: Operator) -> None:
    """Raise `ConfigurationError` if calls of a key could run in two tasks at once."""
    speculates = df.sparkSession.conf.get("spark.speculation", "false") == "true"
    if speculates and not _has_no_order(operator):
        raise ConfigurationError(
            f"{operator.name}: spark.speculation runs a task twice at a time; switch it off"
        )


def _has_no_order(operator: Operator) -> bool:
    options = operator.options
    keyless = options.order in ("key", "emit") and not operator.keys
    return options.order == "none" or (keyless and options.unkeyed == "parallel")


def title_of(operator: Operator) -> str:
    """Return the name of an operator in Spark's plan, with the columns whose order it preserves.

    A later operator reads it from the plan. No columns: all rows stay in order; null: none do.
    ``flat``: it may return several rows for one. ``deterministic``: its function is known to answer
    the same in a rerun of a micro-batch.
    """
    options = operator.options
    in_order: tuple[str, ...] | None = operator.keys
    if options.emit == "partition" or options.order == "partition":
        in_order = ()
    elif _has_no_order(operator):
        in_order = None
    about = {
        "name": operator.name,
        "in_order": in_order,
        "flat": operator.flat,
        "deterministic": nondeterminism_of(operator.function) is None,
    }
    return _TITLE + json.dumps(about)


def operator_in(node: Any) -> dict[str, Any] | None:
    """Return the earlier operator that a node names (`title_of`, `name_earlier_operators`)."""
    title = ""
    if node.nodeName() == "MapInArrow" and node.functionExpr().nodeName() == "PythonUDF":
        title = str(node.functionExpr().name())
    elif node.nodeName() == "SubqueryAlias":
        title = str(node.alias())
    if not title.startswith(_TITLE):
        return None
    about: dict[str, Any] = json.loads(title.removeprefix(_TITLE))
    return about


def name_earlier_operators(rows: DataFrame, plan_of: DataFrame) -> DataFrame:
    """Return ``rows`` with the names of the operators in another DataFrame's plan.

    For rows whose own plan has lost them, because a local checkpoint begins a new plan.
    """
    for node in plan_nodes(analyzed_plan(plan_of), until="Sort"):
        if (earlier := operator_in(node)) is not None:
            rows = rows.alias(_TITLE + json.dumps(earlier))
    return rows


def _reasons(df: DataFrame, plan: Any, operator: Operator) -> Iterator[str]:
    """Yield why rows of a key may be out of order, and what to do."""
    for node in plan_nodes(plan):
        for option in _splitting_options(node):
            yield f"the source option {option} splits a partition; leave it out"
    cure = _IN_STREAMS if df.isStreaming else _IN_BATCHES
    for node in plan_nodes(plan, until="Sort"):  # a sort makes an order of its own
        if (shuffles := _shuffles(node)) is not None:
            yield f"{shuffles} before it changes the order of rows; {cure}, {_NO_ORDER}"
        if (earlier := operator_in(node)) is not None:
            yield from _reordered(earlier, operator)
    sources = [node for node in plan_nodes(plan) if node.children().isEmpty()]
    one_topic = len(sources) == 1 and _source_name(sources[0]) in _KEEPING_SOURCES
    if operator.keys and not one_topic:
        if df.isStreaming:
            yield from _scattered_stream(plan, sources, operator)
        else:
            yield from _scattered_batch(df, plan, sources, operator)


def _splitting_options(node: Any) -> list[str]:
    match node.nodeName():
        case "StreamingRelationV2":
            options = node.extraOptions()
        case "DataSourceV2Relation":
            options = node.options()
        case _:
            return []
    return [option for option in _SPLITTING_OPTIONS if options.containsKey(option)]


def _shuffles(node: Any) -> str | None:
    """Return a description of a node that moves rows between partitions; None for others."""
    name = str(node.nodeName())
    if any(part in name for part in _GROUPING_NODES):
        return "a function over groups"
    return None if _is_coalesce(node) else _SHUFFLING_NODES.get(name)


def _reordered(earlier: dict[str, Any], operator: Operator) -> Iterator[str]:
    in_order = earlier["in_order"]
    keys = () if operator.options.order == "partition" else operator.keys
    if in_order is None or not set(in_order) <= set(keys):
        order = "no order" if in_order is None else f"the order by {in_order}"
        yield (
            f"rows may have passed each other in {earlier['name']}, which keeps {order}; give that "
            "one emit='partition'"
        )


def _scattered_stream(plan: Any, sources: list[Any], operator: Operator) -> Iterator[str]:
    """Yield why rows of a key may be in several partitions; warn if that is not known."""
    names = map(_source_name, sources)
    unknown = next((name for name in names if name not in _KEEPING_SOURCES), None)
    if any(map(_reads_files, sources)):
        yield f"a source of files gives rows in an order of its own; {_IN_STREAMS}, {_NO_ORDER}"
    elif len(sources) > 1 and not _ends_in_one_partition(plan):
        cure = f"use {_JOINED}, {_IN_STREAMS}, {_NO_ORDER}"
        yield f"a union has rows of a key in several partitions; {cure}"
    elif unknown is not None:
        reason = f"the source {unknown!r} may not keep a key in one partition"
        warnings.warn(f"{operator.name}: {reason}; if so, {_IN_STREAMS}", stacklevel=2)


def _scattered_batch(
    df: DataFrame, plan: Any, sources: list[Any], operator: Operator
) -> Iterator[str]:
    """Yield why rows of a key may be in several partitions; warn if that is not known."""
    coalesced = _ends_in_one_partition(plan)
    count = 1 if coalesced else _partitions(df, operator.keys)
    if count == 1:
        if (reason := _lost_row_order(df, plan, sources, coalesced=coalesced)) is not None:
            yield f"{reason}; {_IN_BATCHES}, {_NO_ORDER}"
        return
    reason = f"the input has {count or 'several'} partitions, and rows of a key in any of them"
    cure = f"{_IN_BATCHES}, {_NO_ORDER}"
    if all(map(_can_be_coalesced, sources)) and not _sorts(plan):
        cure = f"{_IN_BATCHES}, {_JOINED}, {_NO_ORDER}"
    if any(source.nodeName() != "LogicalRDD" or _reads_files(source) for source in sources):
        yield f"{reason}; {cure}"
    # made by the user, or by foreachBatch: it may be partitioned by key
    reason = f"it cannot be seen whether {reason}"
    warnings.warn(f"{operator.name}: {reason}; if so, {cure}", stacklevel=2)


def _lost_row_order(df: DataFrame, plan: Any, sources: list[Any], *, coalesced: bool) -> str | None:
    """Return why rows in one partition, or hashed by key, have no order of their own."""
    for node in _line(plan):
        if node.nodeName() == "Sort":
            return None
        if _is_coalesce(node):
            break
    if coalesced and _sorts(plan):
        return "coalesce() may join the partitions of a sort in another order"
    if coalesced and not all(map(_can_be_coalesced, sources)):
        return (
            "Spark reads files and tables in an order of its own, which coalesce() does not change"
        )
    if not all(_is_one_slice(df, source) for source in sources if _reads_files(source)):
        return "Spark reads several files in an order of its own"
    return None


def _can_be_coalesced(source: Any) -> bool:
    """Return whether `coalesce` joins the partitions of a batch source in the order of its rows."""
    if _source_name(source) in _KEEPING_SOURCES:
        return True
    return str(source.nodeName()) in _ORDERED_PARTITIONS and not _reads_files(source)


def _sorts(plan: Any) -> bool:
    """Return whether an earlier operator sorts rows, an order that `coalesce` ignores."""
    return any(node.nodeName() == "Sort" for node in plan_nodes(plan))


def _partitions(df: DataFrame, keys: tuple[str, ...]) -> int | None:
    """Return the number of partitions that may share a key; None if it is not known."""
    execution = query_execution(df)
    partitioning = execution.sparkPlan().outputPartitioning()
    kind = partitioning.getClass().getSimpleName()
    if kind == "SinglePartition$":
        return 1
    if kind == "HashPartitioning":
        hashed = {column.sql().strip("`") for column in scala_items(partitioning.expressions())}
        if hashed <= set(keys):
            return 1
    if execution.executedPlan().getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        return None  # known only after it has run
    return int(execution.toRdd().getNumPartitions())


def _ends_in_one_partition(plan: Any) -> bool:
    return any(_is_coalesce(node) and node.numPartitions() == 1 for node in _line(plan))


def _is_coalesce(node: Any) -> bool:
    return bool(node.nodeName() == "Repartition" and not node.shuffle())


def _line(plan: Any) -> Iterator[Any]:
    """Yield the nodes from the last one to the first that branches or reads."""
    yield plan
    while plan.children().size() == 1:
        plan = plan.children().apply(0)
        yield plan


def _source_name(source: Any) -> str:
    """Return the name of a source, or the kind of the node where it has none."""
    match kind := str(source.nodeName()):
        case "StreamingRelationV2" | "StreamingRelation":
            return str(source.sourceName())
        case "DataSourceV2Relation":
            return str(source.table().name())
        case _:
            return kind


def _reads_files(source: Any) -> bool:
    """Return whether a source node of an analyzed plan reads files.

    A DataFrame made from an RDD, such as the one that ``foreachBatch`` gets, is judged by the RDD's
    lineage.
    """
    match str(source.nodeName()).split(" ")[0]:
        case "LogicalRDD":
            return _FILE_RDD in source.rdd().toDebugString()
        case "StreamingRelation":
            return _source_name(source).startswith("FileSource")
        case "LogicalRelation":
            return _is_a(source.relation(), "HadoopFsRelation")
        case "HiveTableRelation":
            return True
        case "DataSourceV2Relation":
            return str(source.table().getClass().getSimpleName()) in _FILE_TABLES
        case _:
            return False


def _is_a(instance: Any, name: str) -> bool:
    """Return whether a JVM object is of a class of this name, or of one below it."""
    kind = instance.getClass()
    while kind is not None and kind.getSimpleName() != name:
        kind = kind.getSuperclass()
    return kind is not None


def _is_one_slice(df: DataFrame, source: Any) -> bool:
    """Return whether the rows of a file source, in one partition, are one file that is not cut."""
    if source.nodeName() != "LogicalRDD":
        return len(df.inputFiles()) == 1
    return sum(_slices(source.rdd())) == 1


def _slices(rdd: Any) -> Iterator[int]:
    """Yield the number of file slices in each partition of the RDDs of a lineage."""
    if rdd.getClass().getSimpleName() == _FILE_RDD:
        for partition in scala_items(rdd.filePartitions()):
            yield len(partition.files())
    for dependency in scala_items(rdd.dependencies()):
        yield from _slices(dependency.rdd())
