"""How errors of the Kafka client become errors of `thulawa.errors`, and which are retried."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Message, Producer

from thulawa.errors import (
    AuthenticationFailed,
    BrokerError,
    BrokerFailed,
    BrokerUnreachable,
    Fenced,
    OffsetOutOfRange,
    RecordTooLarge,
    UnknownTopic,
)

_T = TypeVar("_T")

_GRACE = 5.0


_CLASSES: dict[type[BrokerError], tuple[int, ...]] = {
    BrokerUnreachable: (
        Code._ALL_BROKERS_DOWN,  # noqa: SLF001 librdkafka's own codes begin so
        Code._TRANSPORT,  # noqa: SLF001
        Code._TIMED_OUT,  # noqa: SLF001
        Code._TIMED_OUT_QUEUE,  # noqa: SLF001
        Code._MSG_TIMED_OUT,  # noqa: SLF001
        Code._RESOLVE,  # noqa: SLF001
        Code.REQUEST_TIMED_OUT,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.BROKER_NOT_AVAILABLE,
    ),
    AuthenticationFailed: (
        Code._AUTHENTICATION,  # noqa: SLF001
        Code._SSL,  # noqa: SLF001
        Code.SASL_AUTHENTICATION_FAILED,
        Code.UNSUPPORTED_SASL_MECHANISM,
        Code.ILLEGAL_SASL_STATE,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    UnknownTopic: (
        Code.UNKNOWN_TOPIC_OR_PART,
        Code._UNKNOWN_TOPIC,  # noqa: SLF001
        Code._UNKNOWN_PARTITION,  # noqa: SLF001
    ),
    RecordTooLarge: (Code.MSG_SIZE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE),
    Fenced: (
        Code._FENCED,  # noqa: SLF001
        Code.PRODUCER_FENCED,
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_TXN_STATE,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.UNKNOWN_PRODUCER_ID,
    ),
    OffsetOutOfRange: (Code.OFFSET_OUT_OF_RANGE, Code._AUTO_OFFSET_RESET),  # noqa: SLF001
}
_BY_CODE = {code: kind for kind, codes in _CLASSES.items() for code in codes}

_PASSING = (
    Code.NOT_LEADER_FOR_PARTITION,
    Code.LEADER_NOT_AVAILABLE,
    Code.REPLICA_NOT_AVAILABLE,
    Code.OFFSET_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.UNSTABLE_OFFSET_COMMIT,
    Code.REQUEST_TIMED_OUT,
    Code._TIMED_OUT,  # noqa: SLF001
    Code._TRANSPORT,  # noqa: SLF001
    Code._WAIT_COORD,  # noqa: SLF001
)


class ProducerErrors:
    """The errors that a producer reports to its callbacks.

    An object of its own: a producer that held a callback of its owner would be a reference cycle,
    and its sockets would stay open until the garbage collector finds it.
    """

    def __init__(self) -> None:
        self._failed: tuple[Code, str | None, int | None] | None = None
        self.fatal: Code | None = None
        self.seen = False  # of the connections, since the producer was created

    @property
    def callbacks(self) -> dict[str, object]:
        """The settings of a producer that reports to this object."""
        return {"on_delivery": self._on_delivery, "error_cb": self._on_error}

    @property
    def failed(self) -> bool:
        """Whether a delivery has failed."""
        return self._failed is not None

    def raise_failed(self) -> None:
        """Raise the error of the first delivery that failed."""
        if self._failed is not None:
            error, topic, partition = self._failed
            raise translated(error, "sending", topic=topic, partition=partition)

    def flush(self, producer: Producer, timeout: float) -> None:
        """Wait until everything that was passed to a producer is stored."""
        deadline = time.monotonic() + timeout
        while left := producer.flush(1.0):
            self.raise_failed()
            if time.monotonic() > deadline:
                raise BrokerUnreachable(f"{left} records are not stored in the time they have")
        self.raise_failed()

    def _on_delivery(self, error: Code | None, message: Message) -> None:
        # a record that is purged because of another failure is not the cause
        if error is not None and (
            self._failed is None or self._failed[0].code() == Code._PURGE_QUEUE  # noqa: SLF001
        ):
            self._failed = error, message.topic(), message.partition()

    def _on_error(self, error: Code) -> None:
        self.seen = True
        if error.fatal():
            self.fatal = error


def transient(error: Code) -> bool:
    """Return whether a retry may succeed."""
    return error.retriable() or error.code() in _PASSING


def retry_transient(step: Callable[[], _T], timeout: float) -> _T:
    """Call ``step``, and retry transient failures for ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return step()
        except KafkaException as error:
            if not transient(error.args[0]) or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def call_with_timeout(step: Callable[[float], _T], seconds: float) -> _T:
    """Call a step that is to end within ``seconds``, its argument, but may hang.

    Raise `BrokerUnreachable` a little after that time. A step that hangs is left on a thread of its
    own, with the client it belongs to: use another client.
    """
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(step(seconds))
        except BaseException as error:  # noqa: BLE001 raised below
            outcome.set_exception(error)

    Thread(target=run, name="kafka-step", daemon=True).start()
    try:
        return outcome.result(seconds + _GRACE)
    except TimeoutError as error:
        if outcome.done():
            raise
        raise BrokerUnreachable(f"the client did not come back in {seconds:.0f} s") from error


@contextmanager
def translate_errors(doing: str, *, topic: str | None = None) -> Iterator[None]:
    """Raise errors of the client within the block as errors of `thulawa.errors`."""
    try:
        yield
    except KafkaException as error:
        raise translated(error, doing, topic=topic) from error
    except SystemError as error:
        # the client raises a fatal error while it is calling back, which CPython turns into a
        # SystemError, once more with each call back that the client still makes
        cause: BaseException | None = error
        while isinstance(cause, SystemError):
            cause = cause.__cause__
        if isinstance(cause, KafkaException):
            raise translated(cause, doing, topic=topic) from cause
        raise


def translated(
    error: KafkaException | Code,
    doing: str,
    *,
    topic: str | None = None,
    partition: int | None = None,
) -> BrokerError:
    """Return the error of `thulawa.errors` that an error of the client stands for."""
    code = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(code, Code):
        return BrokerFailed(f"{doing}: {error}", topic=topic, partition=partition)
    kind = _BY_CODE.get(code.code(), BrokerFailed)
    return kind(f"{doing}: {code.str()}", topic=topic, partition=partition)
