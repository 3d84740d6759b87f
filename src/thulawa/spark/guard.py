"""Refuse plans that break the order of a partition before the engine sees it.

The engine keeps the order in which rows reach it. That is the order of the source only if
nothing on the way splits a partition or shuffles rows, and if no task runs twice at a time.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from thulawa.core.errors import ConfigurationError
from thulawa.spark.operator import Operator

__all__ = ["refuse_broken_order"]

_SPLITTING_OPTIONS = ("minpartitions", "maxrecordsperpartition")
_SOURCES = {"StreamingRelationV2", "DataSourceV2Relation", "LogicalRelation"}
_SHUFFLING_NODES = {
    "Repartition": "a repartition",
    "RepartitionByExpression": "a repartition",
    "Join": "a join",
    "Aggregate": "an aggregation",
    "Distinct": "a distinct",
    "Deduplicate": "a deduplication",
}


def refuse_broken_order(df: DataFrame, operator: Operator) -> None:
    """Raise where rows of a key may not reach the operator in their order."""
    if operator.options.order == "none":
        return
    if df.sparkSession.conf.get("spark.speculation", "false") == "true":
        _refuse(operator, "spark.speculation runs a task twice at a time; switch it off")
    for node in _nodes(df._jdf.queryExecution().analyzed()):  # noqa: SLF001 the plan's only door
        shuffles = _SHUFFLING_NODES.get(node.nodeName())
        if shuffles is not None and not _merely_joins_partitions(node):
            _refuse(
                operator,
                f"{shuffles} before it changes the order of rows; use repartition=True with "
                "order_by, or order='none' if order does not matter",
            )
        for option in _splitting_options(node):
            _refuse(operator, f"the source option {option} splits a partition; leave it out")


def _refuse(operator: Operator, reason: str) -> None:
    raise ConfigurationError(f"{operator.name}: {reason}")


def _merely_joins_partitions(node: Any) -> bool:
    """Tell a coalesce, which reads one partition after the other, from a repartition."""
    return bool(node.nodeName() == "Repartition" and not node.shuffle())


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def _splitting_options(node: Any) -> list[str]:
    """Name the options of a source node that split its partitions; none where it is no source."""
    if node.nodeName() not in _SOURCES:
        return []
    text = node.toString().lower()
    return [option for option in _SPLITTING_OPTIONS if option in text]
