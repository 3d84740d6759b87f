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

__all__ = ["join"]

_PREFIX = "KTABLE-FK-JOIN-"


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of the join's nodes, topics and store, made in the order Kafka counts in."""

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
        """The store of the left rows' versions that were answered. Kafka has no such store."""
        return f"{self.store}-answered"

    @classmethod
    def make(cls, building: GraphBuilder, named: NameLike) -> "_Names":
        """Return the chosen name with suffixes, or generated ones."""

        def name(prefix: str, suffix: str) -> str:
            return building.named(named, prefix, suffix)

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
    building = left.building
    for table in (right.name, left.name):
        building.send_old_values(table, force=True)
    right_stores, left_stores = building.stores_of(right.name), building.stores_of(left.name)
    names = _Names.make(building, named)
    building.add_store(StoreName(names.store, chosen=named is not None))
    building.add_store(StoreName(names.answered, chosen=named is not None))
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
    building.add(step)
    options = named if isinstance(named, TableJoined) else TableJoined()
    _add_registration(
        building, names, right.key_serde or options.other_key_serde, options.other_partitioner
    )
    _add_right_side(building, names, replace(step, table=right.name), right.name, right_stores)
    left_serde = left.key_serde or options.key_serde
    _add_response(building, names, (left_serde, right.value_serde), options.partitioner)
    building.add(
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
    building.source_table(
        Table(name=names.result, parents=(names.resolve,), operation="source"),
        building.store_name(materialized, f"{_PREFIX}OUTPUT-"),
        materialized,
    )
    serdes = ktable.serdes_of(materialized, left_serde)
    return ktable.KTable(building, names.result, *serdes)


def _add_registration(
    building: GraphBuilder,
    names: _Names,
    key_serde: Serde[Any] | None,
    partitioner: Callable[..., int] | None,
) -> None:
    """Send subscriptions to where the right rows are: by the serde of their keys."""
    topic = names.registration
    sink = Sink(name=names.send_sink, parents=(names.send,), topic=topic, internal=True)
    partition = None if partitioner is None else _by_key(partitioner)
    building.add(replace(sink, payload="subscription", key_serde=key_serde, partitioner=partition))
    source = Source(name=names.receive_source, topics=(topic,), internal=True)
    building.add(replace(source, payload="subscription", key_serde=key_serde))


def _add_right_side(
    building: GraphBuilder,
    names: _Names,
    step: ForeignKeyStep,
    table: str,
    table_stores: tuple[str, ...],
) -> None:
    store = (names.store,)
    receive = replace(step, name=names.receive, parents=(names.receive_source,), stores=store)
    building.add(replace(receive, step="receive"))
    answer = replace(step, name=names.answer, parents=(names.receive,), stores=table_stores)
    building.add(replace(answer, step="answer"))
    change = replace(step, name=names.change, parents=(table,), stores=store)
    building.add(replace(change, step="change"))


def _add_response(
    building: GraphBuilder,
    names: _Names,
    serdes: tuple[Serde[Any] | None, Serde[Any] | None],
    partitioner: Callable[..., int] | None,
) -> None:
    """Send answers, with the left row's key and the right row's value, to the left rows."""
    key_serde, value_serde = serdes
    building.add(
        Sink(
            name=names.answer_sink,
            parents=(names.answer, names.change),
            topic=names.response,
            value_serde=value_serde,
            internal=True,
            payload="answer",
            key_serde=key_serde,
            partitioner=_home if partitioner is None else _by_key(partitioner),
        )
    )
    source = Source(name=names.resolve_source, topics=(names.response,), internal=True)
    building.add(replace(source, payload="answer", key_serde=key_serde))


def _by_key(partitioner: Callable[..., int]) -> Callable[..., int]:
    """Call a partitioner as Kafka does here: with no value, for that is a message of the join."""
    check_function(partitioner, "partitioner", ("key", "value", "partitions"))
    return lambda key, _, partitions: partitioner(key, None, partitions)


def _home(key: Any, value: Any, partitions: int) -> int:  # noqa: ARG001 as partitioners are called
    """Send an answer to the partition it was asked from."""
    return int(value.partition) % partitions
