"""Global tables: read-only stores that all tasks share, filled from whole topics."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from thulawa.errors import SerializationError
from thulawa.runtime.handlers import ErrorRecord, Send, apply_response
from thulawa.runtime.metrics import RecordCounts
from thulawa.runtime.task_options import TaskOptions
from thulawa.state.backing import Backing
from thulawa.state.specs import Store
from thulawa.topology.nodes import GlobalTable
from thulawa.topology.topology import Topology


class GlobalTables:
    """The global tables of a topology.

    ``send`` sends dead letters. ``backing`` returns the backing of a store (default: a dict);
    ``tables`` limits the tables (default: all).
    """

    def __init__(
        self,
        topology: Topology,
        options: TaskOptions,
        send: Send,
        backing: Callable[[str], Backing] | None = None,
        tables: Iterable[GlobalTable] | None = None,
    ) -> None:
        self.topics: dict[str, GlobalTable] = {}
        self.stores: dict[str, Store] = {}
        self.counts: RecordCounts = Counter()
        self._handler = options.handlers.deserialization
        self._send = send
        if tables is None:
            tables = [node for node in topology.nodes.values() if isinstance(node, GlobalTable)]
        for node in tables:
            self.topics[node.topic] = node
            store = node.stores[0]
            self.stores[store] = topology.stores[store].open(backing(store) if backing else {})

    def update(self, topic: str, offset: int, key: Any, value: Any, timestamp: int) -> None:
        """Apply a record of a global topic; one without a key is dropped."""
        node = self.topics[topic]
        raw = key, value
        try:
            if node.key_serde is not None:
                key = node.key_serde.loads(key)
            if node.value_serde is not None:
                value = node.value_serde.loads(value)
            if key is None:
                self.counts[node.name, "rule"] += 1
            else:
                store: Any = self.stores[node.stores[0]]
                store.put(key, value, timestamp)
        except SerializationError as error:
            error.node, error.topic, error.partition, error.offset = node.name, topic, 0, offset
            record = ErrorRecord(node.name, topic, 0, offset, *raw, timestamp, ())
            reason = apply_response(self._handler(error, record), error, self._send)
            self.counts[node.name, reason] += 1
