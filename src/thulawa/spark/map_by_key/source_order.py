"""The order of rows in the sources of a plan.

Spark splits files into slices, sorts these by size and distributes them over partitions. Rows are
in the order of a file only if there is one slice. `coalesce` does not restore the order: it joins
partitions, and the slices inside them stay as they are.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from thulawa.spark.internals import scala_items

_FILE_RDD = "FileScanRDD"
_FILE_TABLES = ("ParquetTable", "OrcTable", "CSVTable", "JsonTable", "TextTable", "AvroTable")
_ORDERED_PARTITIONS = {"Range", "LocalRelation", "OneRowRelation", "LogicalRDD"}


def source_name(source: Any) -> str:
    """Return the name of a source, or the kind of the node where it has none."""
    match kind := str(source.nodeName()):
        case "StreamingRelationV2" | "StreamingRelation":
            return str(source.sourceName())
        case "DataSourceV2Relation":
            return str(source.table().name())
        case _:
            return kind


def reads_files(source: Any) -> bool:
    """Return whether a source node of an analyzed plan reads files.

    A DataFrame made from an RDD, such as the one that ``foreachBatch`` gets, is judged by the RDD's
    lineage.
    """
    match str(source.nodeName()).split(" ")[0]:
        case "LogicalRDD":
            return _FILE_RDD in source.rdd().toDebugString()
        case "StreamingRelation":
            return source_name(source).startswith("FileSource")
        case "LogicalRelation":
            return _is_a(source.relation(), "HadoopFsRelation")
        case "HiveTableRelation":
            return True
        case "DataSourceV2Relation":
            return str(source.table().getClass().getSimpleName()) in _FILE_TABLES
        case _:
            return False


def keeps_order_when_coalesced(source: Any) -> bool:
    """Return whether `coalesce` joins the partitions of a batch source in the order of its rows."""
    return str(source.nodeName()) in _ORDERED_PARTITIONS and not reads_files(source)


def is_one_slice(df: DataFrame, source: Any) -> bool:
    """Return whether the rows of a file source are one slice: one file, not cut.

    Assumes that the input has one partition.
    """
    if source.nodeName() != "LogicalRDD":
        return len(df.inputFiles()) == 1
    return sum(_slices(scan) for scan in _file_scans(source.rdd())) == 1


def _is_a(made: Any, name: str) -> bool:
    """Return whether an object of the JVM is of a class of this name, or of one below it."""
    kind = made.getClass()
    while kind is not None:
        if kind.getSimpleName() == name:
            return True
        kind = kind.getSuperclass()
    return False


def _file_scans(rdd: Any) -> Iterator[Any]:
    """Yield the RDDs of a lineage that read files."""
    if rdd.getClass().getSimpleName() == _FILE_RDD:
        yield rdd
    for dependency in scala_items(rdd.dependencies()):
        yield from _file_scans(dependency.rdd())


def _slices(scan: Any) -> int:
    return sum(len(partition.files()) for partition in scala_items(scan.filePartitions()))
