"""Key identity: two keys are equal if and only if their serde writes the same bytes.

A store holds each key under its *identity*: the serialized key, or the key itself if distinct
values of its type always have distinct bytes (`Serde.exact`). The latter holds for text and whole
numbers, which are therefore not serialized for an access. Python's equality never decides: 1, True
and 1.0, 0.0 and -0.0, NaN, lists and dicts are compared by the bytes that their serde writes.

`PLAIN` is the serde of keys for which the program names none: text is UTF-8, as `Serdes.string()`
writes it, and other plain data is MessagePack behind a byte that cannot begin UTF-8. The order of
items in a dict or set makes no difference, and every NaN is equal to every other.
"""

from collections.abc import Hashable
from typing import Any

import msgspec

from thulawa.core.serdes import Serde
from thulawa.errors import SerializationError
from thulawa.state.codec import ColumnCodec

_TUPLE, _OTHER = b"\xfe", b"\xff"  # neither can begin UTF-8 text
_ONE_TO_ONE = frozenset((type(None), bool, int, str, bytes))  # one encoding per value
_SINGLE_TYPE = (frozenset((str,)), frozenset((bytes,)))  # of serdes for one type alone
_codec = ColumnCodec(canonical=True)
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode


def _dump(key: Any) -> bytes:
    kind = type(key)
    if kind is str:
        return bytes(key.encode())
    if kind is tuple and _ONE_TO_ONE.issuperset(map(type, key)):
        try:
            return _TUPLE + _encode(key)
        except OverflowError:  # a number of more than 64 bits
            pass
    return _OTHER + _codec.pack(key)


def _load(data: bytes) -> Any:
    tag = data[:1]
    if tag == _TUPLE:
        return tuple(_decode(memoryview(data)[1:]))
    return _codec.unpack(memoryview(data)[1:]) if tag == _OTHER else data.decode()


PLAIN: Serde[Any] = Serde("plain data", _dump, _load, exact=frozenset((str, int)))


class Keys:
    """Map the keys of a store to their identities and back.

    >>> keys = Keys()
    >>> keys.identity("ann"), keys.identity(1) == keys.identity(True), keys.identity([1]) == [1]
    ('ann', False, False)
    >>> keys.key(keys.identity({"a": [1]}))
    {'a': [1]}
    """

    __slots__ = ("_serde", "exact", "text", "travels_plain")

    def __init__(self, serde: Serde[Any] | None = None) -> None:
        self._serde = serde or PLAIN
        self.exact = self._serde.exact  # types whose values are their own identities
        # The type of text that is its own identity, for callers that inline the test.
        self.text: type[str] = str if str in self.exact else _NoText
        # Whether every key is plain data, and is shuffled as it is; others as their identities.
        self.travels_plain = self._serde == PLAIN or self.exact in _SINGLE_TYPE

    def identity(self, key: Any) -> Hashable:
        """Return the identity of a key; raise `SerializationError` if its serde cannot write it.

        Two identities are equal if and only if the keys' bytes are. The cost is a test of the type
        if the key is its own identity, else a serialization.
        """
        kind = type(key)
        if kind in self.exact:
            if kind is not str or key.isascii():
                found: Hashable = key
                return found
            _check_text(key)
            return str(key)
        data = self._dumped(key)
        if data is not None and self.exact:
            again = self._serde.loads(data)
            if type(again) in self.exact:
                return again
        return data

    def _dumped(self, key: Any) -> bytes | None:
        try:
            return self._serde.dumps(key)
        except SerializationError as error:
            if self._serde == PLAIN:
                raise
            raise SerializationError(
                f"a key of type {type(key).__name__} cannot be written as {self._serde.name}: "
                "pass a key_serde for its type"
            ) from error

    def key(self, identity: Hashable) -> Any:
        """Return the key of an identity: the key itself, or as its serde deserializes it."""
        if type(identity) is bytes and bytes not in self.exact:
            return self._serde.loads(identity)
        return identity

    @property
    def reader(self) -> Serde[Any] | None:
        """The serde that reads keys behind a shuffle of identities; None if keys are shuffled."""
        if self.travels_plain:
            return None
        return Serde(f"key as {self._serde.name}", self._serde.serialize, self.key)

    def windowed_identity(self, windowed: Any) -> tuple[Hashable, Any]:
        """Return the identity of a windowed key."""
        return self.identity(windowed.key), windowed.window


class _NoText(str):
    """A type without instances."""

    __slots__ = ()


def _check_text(key: str) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:
        raise SerializationError(
            "text with a lone surrogate cannot be a key: it cannot be encoded as UTF-8"
        ) from None


PLAIN_KEYS = Keys()
