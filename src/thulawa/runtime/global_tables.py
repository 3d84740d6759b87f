"""Global tables: stores that every task shares, filled from whole topics."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from thulawa.core.errors import SerializationError
from thulawa.core.records import Headers
from thulawa.runtime.handlers import ErrorRecord, Resume
from thulawa.runtime.metrics import Reason, RecordCounts
from thulawa.runtime.task_options import TaskOptions
from thulawa.state.backing import Backing
from thulawa.state.specs import Store
from thulawa.topology.nodes import GlobalTable, Sink
from thulawa.topology.topology import Topology

__all__ = ["GlobalTables"]


class GlobalTables:
    """The global tables of a topology, in memory unless ``backing`` says otherwise.

    ``send`` takes dead letters; ``tables`` are all there are unless told otherwise.
    """

    def __init__(
        self,
        topology: Topology,
        options: TaskOptions,
        send: Callable[[Sink | None, str, Any, Any, int, Headers], None],
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
        """Take a record of a global topic; one without a key is left out."""
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
            self._refused(error, ErrorRecord(node.name, topic, 0, offset, *raw, timestamp, ()))

    def _refused(self, error: SerializationError, record: ErrorRecord) -> None:
        answer = self._handler(error, record)
        if not isinstance(answer, Resume):
            raise error
        for letter in answer.dead_letters:
            self._send(
                None, letter.topic, letter.key, letter.value, letter.timestamp, letter.headers
            )
        reason: Reason = "dead_letter" if answer.dead_letters else "skipped"
        self.counts[record.node or "", reason] += 1
