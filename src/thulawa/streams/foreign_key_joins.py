"""The foreign-key join of two tables: five steps and two repartitions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from thulawa.core.serdes import Serde
from thulawa.streams import ktable
from thulawa.streams.graph_builder import GraphBuilder, NameLike, StoreName
from thulawa.streams.operator_options import Materialized, TableJoined
from thulawa.topology.functions import check_function
from thulawa.topology.nodes import ForeignKeyStep, Sink, Source, Table

_PREFIX = "KTABLE-FK-JOIN-"


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of the join's nodes, topics and stores, generated in Kafka's order."""

    registration: str
    send: str
    send_sink: str
    receive_source: str
    store: str
    receive: str
    answer: str
    change: str
    response: str
    answer_sink: str
    resolve_source: str
    resolve: str
    result: str

    @property
    def answered(self) -> str:
        """The store of the answered versions of left rows. Kafka has no such store."""
        return f"{self.store}-answered"

    @classmethod
    def make(cls, graph: GraphBuilder, named: NameLike) -> "_Names":
        """Return the user's name with suffixes, or generated names."""

        def name(prefix: str, suffix: str) -> str:
            return graph.named(named, prefix, suffix)

        subscription = f"{_PREFIX}SUBSCRIPTION-"
        processor = f"{subscription}PROCESSOR-"
        registration = f"{subscription}REGISTRATION-"
        resolver = f"{subscription}RESPONSE-RESOLVER-PROCESSOR-"
        return cls(
            registration=name(registration, "-subscription-registration") + "-topic",
            send=name(registration, "-subscription-registration-processor"),
            send_sink=name("KTABLE-SINK-", "-subscription-registration-sink"),
            receive_source=name("KTABLE-SOURCE-", "-subscription-registration-source"),
            store=name(f"{subscription}STATE-STORE-", "-subscription-store"),
            receive=name(processor, "-subscription-receive"),
            answer=name(processor, "-subscription-join-foreign"),
            change=name(processor, "-foreign-join-subscription"),
            response=name(f"{subscription}RESPONSE-", "-subscription-response") + "-topic",
            answer_sink=name("KTABLE-SINK-", "-subscription-response-sink"),
            resolve_source=name("KTABLE-SOURCE-", "-subscription-response-source"),
            resolve=name(resolver, "-subscription-response-resolver"),
            result=name(f"{_PREFIX}OUTPUT-", "-result"),
        )


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
    names = _Names.make(graph, named)
    graph.add_store(StoreName(names.store, chosen=named is not None))
    graph.add_store(StoreName(names.answered, chosen=named is not None))
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
    _add_registration(
        graph, names, right.key_serde or options.other_key_serde, options.other_partitioner
    )
    _add_right_side(graph, names, replace(step, table=right.name), right.name, right_stores)
    left_serde = left.key_serde or options.key_serde
    _add_response(graph, names, (left_serde, right.value_serde), options.partitioner)
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
    graph.source_table(
        Table(name=names.result, parents=(names.resolve,), operation="source"),
        graph.store_name(materialized, f"{_PREFIX}OUTPUT-"),
        materialized,
    )
    serdes = ktable.serdes_of(materialized, left_serde)
    return ktable.KTable(graph, names.result, *serdes)


def _add_registration(
    graph: GraphBuilder,
    names: _Names,
    key_serde: Serde[Any] | None,
    partitioner: Callable[..., int] | None,
) -> None:
    """Add the repartition of subscriptions to the right rows, by the right key's serde."""
    topic = names.registration
    sink = Sink(name=names.send_sink, parents=(names.send,), topic=topic, internal=True)
    partition = None if partitioner is None else _by_key(partitioner)
    graph.add(replace(sink, payload="subscription", key_serde=key_serde, partitioner=partition))
    source = Source(name=names.receive_source, topics=(topic,), internal=True)
    graph.add(replace(source, payload="subscription", key_serde=key_serde))


def _add_right_side(
    graph: GraphBuilder,
    names: _Names,
    step: ForeignKeyStep,
    table: str,
    table_stores: tuple[str, ...],
) -> None:
    store = (names.store,)
    receive = replace(step, name=names.receive, parents=(names.receive_source,), stores=store)
    graph.add(replace(receive, step="receive"))
    answer = replace(step, name=names.answer, parents=(names.receive,), stores=table_stores)
    graph.add(replace(answer, step="answer"))
    change = replace(step, name=names.change, parents=(table,), stores=store)
    graph.add(replace(change, step="change"))


def _add_response(
    graph: GraphBuilder,
    names: _Names,
    serdes: tuple[Serde[Any] | None, Serde[Any] | None],
    partitioner: Callable[..., int] | None,
) -> None:
    """Add the repartition of answers, with left key and right value, to the left rows."""
    key_serde, value_serde = serdes
    graph.add(
        Sink(
            name=names.answer_sink,
            parents=(names.answer, names.change),
            topic=names.response,
            value_serde=value_serde,
            internal=True,
            payload="answer",
            key_serde=key_serde,
            partitioner=_to_subscriber if partitioner is None else _by_key(partitioner),
        )
    )
    source = Source(name=names.resolve_source, topics=(names.response,), internal=True)
    graph.add(replace(source, payload="answer", key_serde=key_serde))


def _by_key(partitioner: Callable[..., int]) -> Callable[..., int]:
    """Call a partitioner without a value, as Kafka does: the value is a message of the join."""
    check_function(partitioner, "partitioner", ("key", "value", "partitions"))
    return lambda key, _, partitions: partitioner(key, None, partitions)


def _to_subscriber(key: Any, value: Any, partitions: int) -> int:  # noqa: ARG001 as partitioners are called
    """Return the partition that the subscription came from."""
    return int(value.partition) % partitions
