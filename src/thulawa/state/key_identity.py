"""The identity of keys: two keys are one key where their serde writes the same bytes.

A store holds a key under its *identity*. That is the serialized key, or the key itself where each
value of its type has bytes of its own (`Serde.exact`): text and whole numbers, mostly, which are
then neither written nor read for an access. Python's own equality never decides: 1, True and 1.0,
0.0 and -0.0, NaN, lists and dicts are what their serde makes of them.

`PLAIN` is the serde of keys for which the program names none: text is UTF-8, as `Serdes.string()`
writes it, and other plain data is MessagePack behind a byte that no UTF-8 begins with. The order of
a dict's or a set's items makes no other key, and every NaN is the same one.
"""

from collections.abc import Hashable
from typing import Any

import msgspec

from thulawa.core.errors import SerializationError
from thulawa.core.serdes import Serde
from thulawa.state.codec import ColumnCodec

__all__ = ["PLAIN", "PLAIN_KEYS", "Keys"]

_TUPLE, _OTHER = b"\xfe", b"\xff"  # neither begins a text in UTF-8
_ONE_TO_ONE = frozenset((type(None), bool, int, str, bytes))  # MessagePack has one form of each
_ALONE = (frozenset((str,)), frozenset((bytes,)))  # serdes that take nothing else
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
    """The keys of a store: between a key and the identity it is held under.

    >>> keys = Keys()
    >>> keys.identity("ann"), keys.identity(1) == keys.identity(True), keys.identity([1]) == [1]
    ('ann', False, False)
    >>> keys.key(keys.identity({"a": [1]}))
    {'a': [1]}
    """

    __slots__ = ("_exact", "_serde", "text", "travel")

    def __init__(self, serde: Serde[Any] | None = None) -> None:
        self._serde = serde or PLAIN
        self._exact = self._serde.exact
        # The type of text that is its own identity, for those who test it in line.
        self.text: type[str] = str if str in self._exact else _NoText
        # Whether every key is plain data, and goes through a repartition as it is.
        self.travel = self._serde == PLAIN or self._exact in _ALONE

    def identity(self, key: Any) -> Hashable:
        """Return what a key is held under; raise `SerializationError` if its serde cannot write it.

        The identities of two keys are equal if and only if their bytes are. It costs a test of the
        type where the key is its own identity, else the serde's writing.
        """
        kind = type(key)
        if kind in self._exact:
            if kind is not str or key.isascii():
                found: Hashable = key
                return found
            _check_text(key)
            return str(key)
        data = self._dumped(key)
        if data is not None and self._exact:
            again = self._serde.loads(data)
            if type(again) in self._exact:
                return again
        return data

    def _dumped(self, key: Any) -> bytes | None:
        try:
            return self._serde.dumps(key)
        except SerializationError as error:
            if self._serde == PLAIN:
                raise
            raise SerializationError(
                f"the key, a {type(key).__name__}, cannot be written as {self._serde.name}: "
                "name a key_serde that can"
            ) from error

    def key(self, identity: Hashable) -> Any:
        """Return the key of an identity: as it was given, or as its serde reads it."""
        if type(identity) is bytes and bytes not in self._exact:
            return self._serde.loads(identity)
        return identity

    @property
    def reader(self) -> Serde[Any] | None:
        """The serde that reads keys of identities, which travel in their place; None: they do."""
        if self.travel:
            return None
        return Serde(f"key as {self._serde.name}", self._serde.serialize, self.key)

    def place(self, windowed: Any) -> tuple[Hashable, Any]:
        """Return the identity of a windowed key whose key is one of these."""
        return self.identity(windowed.key), windowed.window


class _NoText(str):
    """The type of nothing."""

    __slots__ = ()


def _check_text(key: str) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:
        raise SerializationError(
            "a text with a lone surrogate cannot be a key: it has no UTF-8"
        ) from None


PLAIN_KEYS = Keys()
