"""The foreign-key join of two tables: five steps and two repartitions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from thulawa.streams import ktable
from thulawa.streams.graph_builder import GraphBuilder, InternalName, NameLike
from thulawa.streams.operator_options import Materialized, TableJoined, or_default
from thulawa.topology.functions import check_function
from thulawa.topology.nodes import ForeignKeyStep, Sink, Table

_PREFIX = "KTABLE-FK-JOIN-"


class _Names:
    """The names of the join's nodes, topics and stores, generated in Kafka's order."""

    def __init__(self, graph: GraphBuilder, named: NameLike) -> None:
        def name(prefix: str, suffix: str) -> str:
            return graph.named(named, prefix, suffix)

        subscription = f"{_PREFIX}SUBSCRIPTION-"
        processor = f"{subscription}PROCESSOR-"
        registration = f"{subscription}REGISTRATION-"
        resolver = f"{subscription}RESPONSE-RESOLVER-PROCESSOR-"
        self.registration = name(registration, "-subscription-registration") + "-topic"
        self.send = name(registration, "-subscription-registration-processor")
        self.send_sink = name("KTABLE-SINK-", "-subscription-registration-sink")
        self.receive_source = name("KTABLE-SOURCE-", "-subscription-registration-source")
        self.store = name(f"{subscription}STATE-STORE-", "-subscription-store")
        self.answered = f"{self.store}-answered"  # Kafka has no such store
        self.receive = name(processor, "-subscription-receive")
        self.answer = name(processor, "-subscription-join-foreign")
        self.change = name(processor, "-foreign-join-subscription")
        self.response = name(f"{subscription}RESPONSE-", "-subscription-response") + "-topic"
        self.answer_sink = name("KTABLE-SINK-", "-subscription-response-sink")
        self.resolve_source = name("KTABLE-SOURCE-", "-subscription-response-source")
        self.resolve = name(resolver, "-subscription-response-resolver")
        self.result = name(f"{_PREFIX}OUTPUT-", "-result")


def join(
    left: "ktable.KTable[Any, Any]",
    right: "ktable.KTable[Any, Any]",
    joiner: Callable[..., Any],
    foreign_key: Callable[..., Any],
    materialized: Materialized[Any, Any] | None,
    named: NameLike,
    *,
    left_join: bool,
) -> "ktable.KTable[Any, Any]":
    """Join the rows of ``left`` with the rows of ``right`` they refer to."""
    graph = left.graph
    for table in (right.name, left.name):
        graph.send_old_values(table, force=True)
    right_stores, left_stores = graph.stores_of(right.name), graph.stores_of(left.name)
    names = _Names(graph, named)
    for store in (names.store, names.answered):
        graph.add_store(InternalName(store, chosen=named is not None), Materialized())
    step = ForeignKeyStep(
        name=names.send,
        parents=(left.name,),
        step="subscribe",
        join=names.send,
        left=left_join,
        store=names.store,
        table=left.name,
        foreign_key=foreign_key,
        joiner=joiner,
    )
    graph.add(step)
    options = named if isinstance(named, TableJoined) else TableJoined()
    # Subscriptions are partitioned by the right key, answers by the left key.
    subscriptions = Sink(
        name=names.send_sink,
        parents=(names.send,),
        topic=names.registration,
        key_serde=right.key_serde or options.other_key_serde,
        partitioner=_by_key(options.other_partitioner, None),
    )
    graph.add_repartition(subscriptions, names.receive_source)
    subscribed = replace(step, table=right.name, stores=(names.store,))
    graph.add(
        replace(subscribed, name=names.receive, parents=(names.receive_source,), step="receive")
    )
    answer = replace(subscribed, name=names.answer, parents=(names.receive,), step="answer")
    graph.add(replace(answer, stores=right_stores))
    graph.add(replace(subscribed, name=names.change, parents=(right.name,), step="change"))
    left_serde = left.key_serde or options.key_serde
    answers = Sink(
        name=names.answer_sink,
        parents=(names.answer, names.change),
        topic=names.response,
        key_serde=left_serde,
        value_serde=right.value_serde,
        partitioner=_by_key(options.partitioner, _to_subscriber),
        answers=True,
    )
    graph.add_repartition(answers, names.resolve_source)
    graph.add(
        replace(
            step,
            name=names.resolve,
            parents=(names.resolve_source,),
            stores=(*left_stores, names.answered),
            unlisted_stores=(names.answered,),
            step="resolve",
            store=names.answered,
        )
    )
    store_options = or_default(materialized, Materialized)
    graph.source_table(
        Table(name=names.result, parents=(names.resolve,), operation="source"),
        graph.store_name(store_options, f"{_PREFIX}OUTPUT-"),
        store_options,
    )
    return ktable.KTable(graph, names.result, *store_options.serdes(left_serde))


def _by_key(
    partitioner: Callable[..., int] | None, default: Callable[..., int] | None
) -> Callable[..., int] | None:
    """Call a partitioner without a value, as Kafka does: the value is a message of the join."""
    if partitioner is None:
        return default
    check_function(partitioner, "partitioner", ("key", "value", "partitions"))
    return lambda key, _, partitions: partitioner(key, None, partitions)


def _to_subscriber(key: Any, value: Any, partitions: int) -> int:  # noqa: ARG001 as partitioners are called
    """Return the partition that the subscription came from."""
    return int(value.partition) % partitions
