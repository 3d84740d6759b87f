"""Entries of stores in a RocksDB database on the local disk, behind a cache in memory.

A `LocalDatabase` holds the stores of one task: the key of an entry begins with the number of its
store. `CachedEntries` is the backing of one store. It is a dict of the entries in use, so that a
hit costs what a dict costs; a miss reads the database (``__missing__``, called by C). A change
passes through three places, and a read looks at them in this order:

1. ``before``: changed since the last commit; the entry itself is in the dict.
2. ``unwritten``, then ``writing``: committed at the broker, and not in the database yet, encoded.
3. the database.

Entries that are in ``before`` are never evicted. Everything runs on one thread, but for the part
of a write between `CachedEntries.start_write` and `finish_write`.
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import filterfalse, islice
from pathlib import Path
from struct import Struct
from typing import Any

from thulawa.errors import StateError
from thulawa.state.backing import TrackedEntries
from thulawa.state.codec import PLAIN_DATA, ColumnCodec

_STORE = Struct(">H")
_INTEGER = Struct(">Q")
_SIGN = 2**63
_MISSING = object()
_SAMPLES = 8  # entries of a block or commit whose sizes are measured
_SLOT_BYTES = 110  # of an entry in a dict, at the usual load


def encode_key(identity: Any) -> bytes:
    """Return the database key of a key identity; text and whole numbers keep their order.

    >>> sorted([5, -1, 300, "b", "a"], key=encode_key)
    [-1, 5, 300, 'a', 'b']
    """
    kind = type(identity)
    if kind is str:
        return b"s" + bytes(identity.encode())
    if kind is bytes:
        return b"b" + bytes(identity)
    if kind is int and -_SIGN <= identity < _SIGN:
        return b"i" + _INTEGER.pack(identity + _SIGN)
    return b"x" + PLAIN_DATA.pack(identity)


def decode_key(data: bytes) -> Any:
    """Return the key identity that `encode_key` has encoded."""
    kind, content = data[:1], data[1:]
    if kind == b"s":
        return content.decode()
    if kind == b"b":
        return content
    if kind == b"i":
        return _INTEGER.unpack(content)[0] - _SIGN
    return PLAIN_DATA.unpack(content)


class DatabaseMemory:
    """The memory that the databases of a process share: a block cache and write buffers."""

    def __init__(self, limit: int) -> None:
        import rocksdict  # noqa: PLC0415 only applications with local state need it

        self.cache = rocksdict.Cache(limit // 2)
        self.buffers = rocksdict.WriteBufferManager(limit // 2, allow_stall=False)
        self.buffer_bytes = max(limit // 8, 64 * 1024)

    def options(self) -> Any:
        """Return the options of a database within this memory."""
        from rocksdict import (  # noqa: PLC0415 as above
            BlockBasedIndexType,
            BlockBasedOptions,
            DBCompressionType,
            Options,
        )

        table = BlockBasedOptions()
        table.set_block_cache(self.cache)
        # filters and indexes count as blocks: memory stays bounded whatever the number of keys
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_bloom_filter(10, block_based=False)
        table.set_format_version(5)
        options = Options(raw_mode=True)
        options.create_if_missing(True)  # noqa: FBT003 of the client
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self.buffers)
        options.set_write_buffer_size(self.buffer_bytes)
        options.set_max_background_jobs(2)
        options.set_max_open_files(256)
        options.set_keep_log_file_num(1)
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_bytes_per_sync(2**20)
        return options


class LocalDatabase:
    """The database of one task.

    ``error`` is the first error of the disk: whoever commits must look at it, because an error
    handler of the application may have skipped the record at which it was raised.
    """

    def __init__(self, folder: Path, memory: DatabaseMemory) -> None:
        from rocksdict import Rdict, WriteOptions  # noqa: PLC0415 as above

        self._folder = folder
        self.error: StateError | None = None
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[assignment,method-assign] # a property
        try:
            self._database: Any = Rdict(str(folder), memory.options())
        except Exception as error:  # the client has no class for its errors
            raise self._failed("opened", error) from error

    def _failed(self, what: str, error: Exception) -> StateError:
        failed = StateError(
            f"the local state in {self._folder} cannot be {what}: {error}. Nothing is lost, its "
            "changelogs have everything: check the disk and its free space, and start again"
        )
        self.error = self.error or failed
        return failed

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        try:
            found: bytes | None = self._database.get(key)
        except Exception as error:
            raise self._failed("read", error) from error
        return found

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of several keys, at less cost for each."""
        try:
            found: list[bytes | None] = self._database.get(keys)
        except Exception as error:
            raise self._failed("read", error) from error
        return found

    def write(self, entries: Iterable[tuple[bytes, bytes | None]], *, logged: bool = True) -> None:
        """Write entries atomically; a value of None removes the key.

        What is not ``logged`` is lost with the process until `flush`, the later writes first.
        """
        from rocksdict import WriteBatch  # noqa: PLC0415 as above

        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in entries:
            if value is None:
                delete(key)
            else:
                put(key, value)
        try:
            self._database.write(batch, None if logged else self._unlogged)
        except Exception as error:
            raise self._failed("written", error) from error

    def flush(self) -> None:
        """Write the buffers to files."""
        try:
            self._database.flush()
        except Exception as error:
            raise self._failed("written", error) from error

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries whose keys begin with a prefix, in key order, as they are now."""
        try:
            for key, value in self._database.items(from_key=prefix):
                if not key.startswith(prefix):
                    return
                yield key, value
        except Exception as error:
            raise self._failed("read", error) from error

    def close(self) -> None:
        """Close the files."""
        self._database.close()


class CachedEntries(TrackedEntries):
    """The entries of store ``number`` of a database, with those in use in memory.

    ``entry_bytes`` is the estimated memory of one entry in the dict.
    """

    __slots__ = (
        "_absent", "_codec", "_complete", "_database", "_prefix", "_unwritten", "_writing",
        "entry_bytes",
    )  # fmt: skip

    def __init__(self, database: LocalDatabase, number: int, codec: ColumnCodec) -> None:
        super().__init__()
        self._database = database
        self._prefix = _STORE.pack(number)
        self._codec = codec
        self._absent: set[Any] = set()  # keys of the last block that the database does not have
        self._complete = False  # whether the dict has every entry
        self._unwritten: dict[Any, bytes | None] = {}
        self._writing: dict[Any, bytes | None] = {}
        self.entry_bytes = 300.0

    # --- reads

    def __missing__(self, key: Any) -> Any:
        if self._complete or key in self._absent or key in self.before:
            return None
        data = self._unwritten.get(key, _MISSING)
        if data is _MISSING:
            data = self._writing.get(key, _MISSING)
        if data is _MISSING:
            data = self._database.get(self._prefix + encode_key(key))
        if data is None:
            return None
        value = self._codec.decode_one(data)  # type: ignore[arg-type] # no longer _MISSING
        dict.__setitem__(self, key, value)
        return value

    def get(self, key: Any, default: Any = None, /) -> Any:
        """Return the value of a key."""
        found = self[key]
        return default if found is None else found

    def __contains__(self, key: Any, /) -> bool:
        return self[key] is not None

    def pop(self, key: Any, default: Any = None, /) -> Any:
        """Remove a key and return its value."""
        old = self[key]
        self.before.setdefault(key, old)
        dict.pop(self, key, None)
        return default if old is None else old

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Load the entries of a block of identities with one read.

        Those that have none are remembered until the next call.
        """
        self._absent.clear()
        if self._complete:
            return
        missing = list(filterfalse(dict.__contains__.__get__(self), keys))
        if not missing:
            return
        ours = self.before, self._unwritten, self._writing
        wanted = [
            key
            for key in dict.fromkeys(missing)
            if not any(key in one for one in ours) and (type(key) is not str or key.isascii())
        ]
        prefix, decode, set_item = self._prefix, self._codec.decode_one, dict.__setitem__
        found = self._database.get_many([prefix + encode_key(key) for key in wanted])
        for key, data in zip(wanted, found, strict=True):
            if data is None:
                self._absent.add(key)
            else:
                set_item(self, key, decode(data))
        self._measure(wanted)

    def _merged(self) -> Iterator[tuple[Any, bytes | None]]:
        """Yield the keys that are not in memory, with their encoded values."""
        pending = {**self._writing, **self._unwritten}
        start, before, held = len(self._prefix), self.before, dict.__contains__.__get__(self)
        for key, data in pending.items():
            if data is not None and key not in before and not held(key):
                yield key, data
        if not self._complete:
            for name, stored in self._database.scan(self._prefix):
                key = decode_key(name[start:])
                if key not in pending and key not in before and not held(key):
                    yield key, stored

    def keys(self) -> Any:
        """Return all keys."""
        return [*dict.keys(self), *(key for key, _ in self._merged())]

    def items(self) -> Any:
        """Return all entries."""
        decode = self._codec.decode_one
        cold = ((key, decode(data)) for key, data in self._merged() if data is not None)
        return [*dict.items(self), *cold]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return dict.__len__(self) + sum(1 for _ in self._merged())

    def __bool__(self) -> bool:
        return len(self) > 0

    # --- changes

    def __setitem__(self, key: Any, value: Any, /, set_item: Any = dict.__setitem__) -> None:
        if key not in self.before:
            self.before[key] = self[key]
        set_item(self, key, value)

    def take_changes(self) -> Iterator[tuple[Any, bytes | None]]:
        """Yield the changed keys and their encoded values; they count as committed from then on."""
        changed, encode, held = self.before, self._codec.encode_one, dict.get
        self._absent.clear()
        self._measure(changed)
        for key, old in changed.items():
            value = held(self, key)
            if value is None and old is None:
                continue
            data = None if value is None else encode(value)
            self._unwritten[key] = data
            yield key, data
        changed.clear()

    def open(self) -> None:
        """Prepare for reads, after everything has been restored."""
        self._complete = next(self._database.scan(self._prefix), None) is None

    def restored(self, key: Any, data: bytes | None) -> tuple[bytes, bytes | None]:
        """Return the database entry of a restored key."""
        return self._prefix + encode_key(key), data

    # --- the database and memory

    @property
    def unwritten(self) -> int:
        """The number of committed changes that the database does not have."""
        return len(self._unwritten)

    def start_write(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield what has been committed and is not in the database."""
        self._writing = self._unwritten
        self._unwritten = {}
        prefix = self._prefix
        for key, data in self._writing.items():
            yield prefix + encode_key(key), data

    def finish_write(self) -> None:
        """Forget what the database has now."""
        self._writing = {}

    @property
    def held(self) -> int:
        """The number of entries in memory."""
        return dict.__len__(self)

    def evict(self, count: int) -> None:
        """Remove some entries from memory, those first that came first; changed ones stay."""
        before = self.before
        keys = list(islice(dict.__iter__(self), count))
        for key in keys:
            if key not in before:
                dict.__delitem__(self, key)
        self._complete = self._complete and not keys

    def _measure(self, keys: Iterable[Any]) -> None:
        """Update the estimate of the memory of an entry."""
        sizes = [
            size_of(key) + size_of(value) + _SLOT_BYTES
            for key in islice(keys, _SAMPLES)
            if (value := dict.get(self, key)) is not None
        ]
        for size in sizes:
            self.entry_bytes += (size - self.entry_bytes) * 0.05


def size_of(value: Any) -> int:
    """Return the bytes of a value of plain data in memory, roughly."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(size_of(key) + size_of(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return size + sum(map(size_of, value))
    return size
