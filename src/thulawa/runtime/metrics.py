"""Counts of the records that each node dropped, by reason."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

# by a rule of the operator; too late for its window; by a handler without, or with dead letters
Reason: TypeAlias = Literal["rule", "late", "skipped", "dead_letter"]
RecordCounts: TypeAlias = Counter[tuple[str, Reason]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMetrics:
    """The records that a node dropped.

    ``dropped_records`` counts all of them, like Kafka Streams' metric of this name: records without
    a required key or value, with an invalid timestamp, too late (``late_records``), or for whose
    error a handler returned `Resume`, without (``skipped_records``) or with dead letters
    (``dead_letter_records``).
    """

    dropped_records: int = 0
    late_records: int = 0
    skipped_records: int = 0
    dead_letter_records: int = 0


def node_metrics(counts: Iterable[Mapping[tuple[str, Reason], int]]) -> dict[str, NodeMetrics]:
    """Return the metrics of each node that dropped any record, by name."""
    total: RecordCounts = Counter()
    for one in counts:
        total.update(one)
    return {
        name: NodeMetrics(
            dropped_records=sum(n for (node, _), n in total.items() if node == name),
            late_records=total[name, "late"],
            skipped_records=total[name, "skipped"],
            dead_letter_records=total[name, "dead_letter"],
        )
        for name in sorted({node for node, _ in total})
    }
