"""Aliases for the spellings of KIP-28, the proposal of Kafka Streams.

=============================================  =============================================
KIP-28                                         Thulawa
=============================================  =============================================
``KStreamBuilder().from_(topic)``              ``StreamsBuilder().stream(topic)``
``stream.send_to(topic)``                      ``stream.to(topic)``
``one.with_(window).join(two.with_(window))``  ``one.join(two, joiner, window)``
``one.with_(window).join_prior(...)``          ``one.join_prior(two, joiner, window)``
``TopologyBuilder()``                          ``Topology()``
=============================================  =============================================
"""

from collections.abc import Callable
from typing import Any, Generic

from thulawa.errors import ConfigurationError
from thulawa.streams.type_variables import V1, V2, K, V
from thulawa.topology.windows import JoinWindows


class BuilderAliases:
    """KIP-28's spelling of `StreamsBuilder` methods."""

    def from_(self: Any, topic: str) -> Any:
        """Read a topic; alias of ``stream``.

        >>> from thulawa.streams import KStreamBuilder
        >>> KStreamBuilder().from_("in").name
        'KSTREAM-SOURCE-0000000000'
        """
        return self.stream(topic)


class StreamAliases(Generic[K, V]):
    """KIP-28's spelling of `KStream` methods."""

    def send_to(self: Any, topic: str) -> None:
        """Write to a topic; alias of ``to``.

        >>> from thulawa.streams import KStreamBuilder
        >>> builder = KStreamBuilder()
        >>> builder.from_("in").send_to("out")
        >>> [sink.topic for sink in builder.build().subtopologies()[0].sinks]
        ['out']
        """
        self.to(topic)

    def with_(self, windows: JoinWindows) -> "KStreamWindowed[K, V]":
        """Return the stream with the windows of a join.

        >>> def program(one, two):
        ...     near = JoinWindows.of(10)
        ...     return one.with_(near).join(two.with_(near), lambda a, b: a + b)
        >>> preview(program, ("one", "k", 1, 0), ("two", "k", 2, 5))
        [('k', 3)]
        """
        return KStreamWindowed(self, windows)


class KStreamWindowed(Generic[K, V]):
    """A stream with windows, to be joined with a stream with equal windows."""

    def __init__(self, stream: Any, windows: JoinWindows) -> None:
        self._stream = stream
        self._windows = windows

    def join(self, other: "KStreamWindowed[K, V1]", joiner: Callable[[V, V1], V2]) -> Any:
        """Join records of the same key within the window.

        >>> def program(one, two):
        ...     near = JoinWindows.of(10)
        ...     return one.with_(near).join(two.with_(near), lambda a, b: a + b)
        >>> preview(program, ("two", "k", 2, 5), ("one", "k", 1, 0))
        [('k', 3)]
        """
        return self._stream.join(self._partner(other), joiner, self._windows)

    def join_prior(self, other: "KStreamWindowed[K, V1]", joiner: Callable[[V, V1], V2]) -> Any:
        """Join each record with the other side's older records only.

        >>> def program(one, two):
        ...     near = JoinWindows.of(10)
        ...     return one.with_(near).join_prior(two.with_(near), lambda a, b: a + b)
        >>> preview(program, ("two", "k", 2, 5), ("one", "k", 1, 0))
        []
        """
        return self._stream.join_prior(self._partner(other), joiner, self._windows)

    def _partner(self, other: "KStreamWindowed[Any, Any]") -> Any:
        if other._windows != self._windows:  # noqa: SLF001 of its own kind
            raise ConfigurationError("both sides of a join must have the same windows")
        return other._stream  # noqa: SLF001 of its own kind
