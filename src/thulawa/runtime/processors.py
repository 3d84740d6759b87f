"""User-defined processors: their context, and the functions that call them."""

from collections.abc import Callable
from typing import Any

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.names import check_name
from thulawa.core.records import Headers, Record, RecordMetadata
from thulawa.core.serdes import Serde
from thulawa.errors import ProcessingError
from thulawa.runtime.context import Forward, Wiring
from thulawa.runtime.output_encoder import as_bytes, check_written
from thulawa.runtime.punctuation import Schedule
from thulawa.topology.nodes import Node, Process, Sink
from thulawa.topology.processor import PunctuationType


class NodeContext:
    """The `ProcessorContext` of one node."""

    def __init__(self, node: Node, wiring: Wiring) -> None:
        self._node = node
        self._wiring = wiring
        self._task = wiring.context

    @property
    def task_id(self) -> str:
        """Sub-topology and number of the task."""
        return self._task.task_id

    @property
    def stream_time(self) -> int:
        """The highest timestamp this task has seen, or -1."""
        return self._task.stream_time

    @property
    def wall_clock_time(self) -> int:
        """The task's clock, in milliseconds."""
        return self._task.wall_clock_time

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Topic, partition and offset of the current record; None in a punctuation."""
        return self._task.metadata()

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        """Forward a record to all children, or to one by name."""
        target, children = self._wiring.forward, self._wiring.children
        if child is not None:
            if child not in children:
                raise self.error(f"there is no child {child!r}; there are {sorted(children)}")
            target = children[child]
        if not isinstance(record, Record):
            raise self.error(
                f"forward needs a thulawa.streams.Record, not {type(record).__module__}."
                f"{type(record).__qualname__}: from thulawa.streams import Record"
            )
        check_written(record.timestamp, record.headers)
        target(record.key, record.value, record.timestamp, record.headers)

    def error(self, message: str) -> ProcessingError:
        """Return an error of this node."""
        return ProcessingError(message, node=self._node.name)

    def send(self, *record: Any, **options: Any) -> None:
        """Send a record to a topic (see `ProcessorContext`)."""
        self.sending(*record, **options)()

    def sending(
        self,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int | None = None,
        headers: Headers = (),
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
    ) -> Callable[[], None]:
        """Check and serialize a record; return a function that sends it."""
        check_name(topic, "topic")
        time = max(self._task.stream_time, 0) if timestamp is None else timestamp
        check_written(time, headers)
        raw_key = as_bytes(key) if key_serde is None else key_serde.dumps(key)
        raw_value = as_bytes(value) if value_serde is None else value_serde.dumps(value)
        send = self._task.collector.send
        sink = Sink(name=self._node.name, topic=topic)
        return lambda: send(sink, topic, raw_key, raw_value, time, headers)

    def schedule(
        self, interval: Duration, kind: PunctuationType, callback: Callable[[int], None]
    ) -> Schedule:
        """Schedule a callback at multiples of the interval."""
        every = milliseconds(interval, name="interval")
        now = self._task.wall_clock_time

        def call(time: int) -> None:
            try:
                callback(time)
            except Exception as error:  # noqa: BLE001 the handler decides about any error
                self._wiring.failed(error, None, None, time, ())

        return self._wiring.punctuations.add(every, kind, call, now, self._node.name)

    def state_store(self, name: str) -> Any:
        """Return a store that is connected to this processor."""
        if name not in self._node.stores:
            raise self.error(
                f"the store {name!r} is not connected to this processor; "
                f"connected are {list(self._node.stores)}"
            )
        return self._task.store(name)

    def commit(self) -> None:
        """Request a commit after this record."""
        self._task.commit_requested = True


class ContextProxy:
    """A context that delegates to another one; subclasses restrict or change its methods."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def process(node: Process, wiring: Wiring) -> Forward:
    """Create and initialize the processor of a node; return its function."""
    context, processor = NodeContext(node, wiring), node.supplier()
    processor.init(_SameKeyContext(context) if node.values_only else context)
    wiring.closers.append(processor.close)
    handle, failed = processor.process, wiring.failed

    def call(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            handle(Record(key, value, timestamp, headers))
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            failed(error, key, value, timestamp, headers)

    if not node.values_only:
        return call

    def call_keyed(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        processor.context.key = key
        call(key, value, timestamp, headers)

    return call_keyed


class _SameKeyContext(ContextProxy):
    """The context of ``process_values``: forwarded records must have the input's key."""

    key: Any = None

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        if record.key is not self.key and record.key != self.key:
            raise self._context.error("process_values must not change the key; use process")
        self._context.forward(record, child)
