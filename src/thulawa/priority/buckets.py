"""Buckets: some events are more urgent than others, and Kafka has no priorities.

The partitions of a topic are grouped into buckets by percentage. A record's bucket comes from its
key, and its key keeps it in one partition of that bucket, so that order per key holds. Both
sides compute the layout from the same few numbers. Writers stamp each record with a fingerprint of
them, as a header, and readers reject the stamp of another layout: Kafka topics have no custom
settings, and a stamp shows how a record was placed, whoever wrote it.

Sizes are computed by largest remainder, with at least one partition each: rounding each share would
leave buckets without a partition, or assign more partitions than there are.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

from thulawa.core.partitioning import partition_of
from thulawa.errors import ConfigurationError, UnknownBucket

STAMP = "thulawa.buckets"
"""The header with the fingerprint of the layout that placed a record."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one of several readers of a topic: a bucket's partitions, and cores."""

    bucket: str
    partitions: list[int]
    cores: int
    buckets: "Buckets" = field(repr=False)

    def options(self, topic: str) -> dict[str, str]:
        """Return the options of the embedded log's source that read only this part.

        Records of another layout raise, except if a bucket is a function of the key.
        """
        options = {"assign": json.dumps({topic: self.partitions}), "maxPartitions": str(self.cores)}
        if self.buckets.bucket_of is None:
            options["buckets"] = self.buckets.text
        return options


@dataclass(frozen=True, slots=True)
class Buckets:
    """Group partitions by urgency; the shares are whole percentages that sum to 100.

    The first bucket is the most urgent; its size depends on its share only. The bucket of a key is
    the text before the first ``delimiter`` (the whole key if there is none), without surrounding
    spaces, or what ``bucket_of`` returns for the serialized key. (It depends on the key and not on
    the record, or a key would be in several partitions.) Keys are text or bytes. A key of no known
    bucket raises `UnknownBucket`, goes to the ``default`` bucket, is dropped, or is spread over all
    partitions, depending on ``unknown``. ``accepts`` are fingerprints of earlier layouts whose
    records are accepted too.

    >>> buckets = Buckets({"Platinum": 70, "Gold": 30}, delimiter="-")
    >>> buckets.layout(6)
    {'Platinum': [0, 1, 2, 3], 'Gold': [4, 5]}
    >>> buckets.bucket("Gold-7"), buckets.partition("Gold-7", 6)
    ('Gold', 4)
    """

    shares: Mapping[str, int] | Iterable[tuple[str, int]] = field(hash=False)
    delimiter: str = "-"
    bucket_of: Callable[[Any], str | bytes | None] | None = None
    default: str | None = None
    unknown: Literal["fail", "drop", "spread"] = "fail"
    accepts: tuple[str, ...] | str = ()
    urgency: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        pairs = _checked_shares(self.shares)
        names = [name for name, _ in pairs]
        delimiter: Any = self.delimiter
        if not isinstance(delimiter, str) or not delimiter:
            raise ConfigurationError(f"delimiter must be text, not {delimiter!r}")
        for name in names:
            if self.delimiter in name and self.bucket_of is None:
                raise ConfigurationError(
                    f"the name {name!r} holds the delimiter {delimiter!r}, so no key is in it; use "
                    "another delimiter, or bucket_of="
                )
        if self.unknown not in ("fail", "drop", "spread"):
            raise ConfigurationError(
                f"unknown={self.unknown!r} is not known; use 'fail', 'drop' or 'spread', "
                "or name a default bucket"
            )
        if self.default is not None and self.default not in names:
            raise ConfigurationError(f"default={self.default!r} is none of the buckets {names}")
        if self.default is not None and self.unknown != "fail":
            raise ConfigurationError("give default= or unknown=, not both: they answer the same")
        # the largest first, equal ones in the given order
        ordered = sorted(pairs, key=lambda pair: -pair[1])
        object.__setattr__(self, "shares", dict(ordered))
        object.__setattr__(self, "urgency", tuple(names))
        if self.bucket_of is not None and not callable(self.bucket_of):
            raise ConfigurationError(f"bucket_of is a function of a key, not {self.bucket_of!r}")
        accepts = (self.accepts,) if isinstance(self.accepts, str) else tuple(self.accepts)
        if not all(isinstance(one, str) for one in accepts):
            raise ConfigurationError(f"accepts are fingerprints, which are text, not {accepts!r}")
        object.__setattr__(self, "accepts", accepts)

    @classmethod
    def of(cls, text: "Buckets | str") -> "Buckets":
        """Return the buckets that `text` describes; buckets are returned unchanged.

        >>> Buckets.of('{"shares": [["Platinum", 70], ["Gold", 30]]}').layout(2)
        {'Platinum': [0], 'Gold': [1]}
        """
        if isinstance(text, Buckets):
            return text
        if not isinstance(text, str):
            raise ConfigurationError(f"{text!r:.80} is no Buckets: write Buckets({{…}})")
        try:
            known = json.loads(text)
            return cls(**known | {"shares": [(name, share) for name, share in known["shares"]]})
        except ConfigurationError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{text[:80]!r} describes no buckets ({error}); write .option('buckets', "
                "buckets.text)"
            ) from error

    @property
    def text(self) -> str:
        """These buckets as text, for the options of a source or a sink."""
        if self.bucket_of is not None:
            raise ConfigurationError(
                "bucket_of is a function, which no option of a source or a sink can hold: give "
                "rows their partition and their stamp with thulawa.priority.in_buckets(...) instead"
            )
        known = {
            "shares": [[name, self._shares[name]] for name in self.urgency],
            "delimiter": self.delimiter,
            "default": self.default,
            "unknown": self.unknown,
            "accepts": self.accepts,
        }
        return json.dumps(known, ensure_ascii=False)

    @property
    def names(self) -> list[str]:
        """The buckets, the largest first."""
        return list(self._shares)

    @property
    def fingerprint(self) -> str:
        """A hash of everything that two sides must have in common for the same layout."""
        parts = (list(self._shares.items()), self.delimiter, self.default, self.unknown)
        # of a function only its presence can be compared
        text = repr(parts if self.bucket_of is None else (*parts, "bucket_of"))
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def layout(self, partitions: int) -> dict[str, list[int]]:
        """Return the partitions of each bucket; raise for fewer partitions than buckets."""
        layout = _layout(tuple(self._shares.items()), partitions)
        return {name: list(places) for name, places in layout.items()}

    def members(self, partitions: int) -> dict[int, str]:
        """Return the bucket of each partition."""
        layout = self.layout(partitions)
        return {place: name for name, places in layout.items() for place in places}

    def sizes(self, count: int) -> dict[str, int]:
        """Return ``count`` divided by largest remainder, with at least one for each bucket."""
        return _sizes(self._shares, count)

    def bucket(self, key: Any) -> str | None:
        """Return the bucket of a key; None if it is unknown, and dropped or spread."""
        found = self._named(key)
        if found in self._shares:
            return found
        if self.default is not None:
            return self.default
        if self.unknown == "fail":
            begins = "is neither text nor bytes" if found is None else f"is of {found!r:.60}"
            raise UnknownBucket(
                f"the key {begins}, and the buckets are {self.names}",
                key=key if isinstance(key, str | bytes | int) else None,
            )
        return None

    def lane(self, key: Any) -> str:
        """Return the lane of a key: its bucket or, if it is unknown, the least urgent one."""
        return self.bucket(key) or self.urgency[-1]

    def partition(self, key: Any, partitions: int) -> int | None:
        """Return the partition of a key, always the same one; None if it is dropped.

        Writers distribute records without a key round-robin over the partitions of their bucket.
        """
        places = self.places(key, partitions)
        return places[partition_of(_key_bytes(key), len(places))] if places else None

    def places(self, key: Any, partitions: int) -> Sequence[int]:
        """Return the candidate partitions of a key; none if it is dropped."""
        bucket = self.bucket(key)
        if bucket is not None:
            return _layout(tuple(self._shares.items()), partitions)[bucket]
        return range(partitions) if self.unknown == "spread" else ()

    def assign_members(self, partitions: int, members: Mapping[str, str]) -> dict[str, list[int]]:
        """Return the partitions of each member of a consumer group, given the members' buckets.

        The partitions of a bucket are assigned to its members, those of a bucket without members to
        the members with the fewest. Every partition has exactly one reader.

        >>> buckets = Buckets({"Platinum": 70, "Gold": 30})
        >>> buckets.assign_members(6, {"a": "Platinum", "b": "Platinum"})
        {'a': [0, 2, 4], 'b': [1, 3, 5]}
        """
        if unknown := sorted(set(members.values()) - set(self._shares)):
            raise ConfigurationError(f"a member asks for {unknown[0]!r}; there are {self.names}")
        if not members:
            raise ConfigurationError("there is no member: nobody would read")
        assigned: dict[str, list[int]] = {member: [] for member in sorted(members)}
        orphans: list[int] = []
        for name, places in self.layout(partitions).items():
            own = [member for member in assigned if members[member] == name]
            for turn, place in enumerate(places):
                if own:
                    assigned[own[turn % len(own)]].append(place)
                else:
                    orphans.append(place)
        for place in orphans:
            assigned[min(assigned, key=lambda member: len(assigned[member]))].append(place)
        return assigned

    def assign(self, partitions: int, cores: int) -> dict[str, Share]:
        """Return the partitions and cores of the query of each bucket.

        Cores are divided as partitions are, with at least one for each bucket, and at most as many
        as it has partitions.

        >>> Buckets({"Platinum": 70, "Gold": 30}).assign(6, 4)["Gold"]
        Share(bucket='Gold', partitions=[4, 5], cores=1)
        """
        if type(cores) is not int:
            raise ConfigurationError(f"{cores!r} is no number of cores")
        if cores < len(self._shares):
            raise ConfigurationError(
                f"{cores} cores are too few for {len(self._shares)} queries, one for each bucket; "
                "read all buckets with one query instead"
            )
        layout, sizes = self.layout(partitions), self.sizes(cores)
        return {
            name: Share(name, layout[name], min(sizes[name], len(layout[name])), self)
            for name in self.urgency
        }

    @property
    def stamp(self) -> tuple[str, bytes]:
        """The header of records that this layout placed."""
        return STAMP, self.fingerprint.encode()

    def check(self, fingerprint: str) -> None:
        """Raise `ConfigurationError` for the fingerprint of another layout."""
        if fingerprint != self.fingerprint and fingerprint not in self.accepts:
            raise ConfigurationError(
                f"records were placed by another layout of buckets: its fingerprint is "
                f"{fingerprint}, here it is {self.fingerprint}; give producers and consumers the "
                "same shares, delimiter and answer to unknown buckets, or say accepts=(…,) if "
                "records of that layout are to be read too"
            )

    def check_headers(self, headers: Iterable[Iterable[tuple[str, Any]] | None]) -> None:
        """Raise for records with the stamp of another layout; those without a stamp are accepted.

        Of several stamps the last one counts: that of the writer that placed the record.
        """
        last = {
            tuple([value for name, value in one or () if name == STAMP][-1:]) for one in headers
        }
        for stamp in last:
            for value in stamp:
                self.check(bytes(value or b"").decode(errors="replace"))

    @property
    def _shares(self) -> dict[str, int]:
        assert isinstance(self.shares, dict)
        return self.shares

    def _named(self, key: Any) -> str | None:
        if self.bucket_of is None:
            text = key if isinstance(key, str) else _written(key)
            text = text.decode(errors="replace") if isinstance(text, bytes) else text
            return text.partition(self.delimiter)[0].strip() if isinstance(text, str) else None
        found = self.bucket_of(_written(key))
        if found is not None and not isinstance(found, str | bytes):
            raise ConfigurationError(f"bucket_of gave {found!r}, which is no name of a bucket")
        return found.decode(errors="replace") if isinstance(found, bytes) else found


def _written(key: Any) -> Any:
    """Return a key as bytes if it is text or bytes-like, else unchanged."""
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"the key {key!r:.60} cannot be written: {error}") from error
    return bytes(key) if isinstance(key, bytearray | memoryview) else key


def _key_bytes(key: Any) -> bytes | None:
    """Return the bytes that select a partition; of another type of key, its `repr`."""
    written = _written(key)
    return written if written is None or isinstance(written, bytes) else repr(written).encode()


@lru_cache(maxsize=64)
def _layout(shares: tuple[tuple[str, int], ...], partitions: int) -> dict[str, range]:
    """Return the layout, the largest bucket first; cached, because every key needs it."""
    layout, first = {}, 0
    for name, size in _sizes(dict(shares), partitions).items():
        layout[name] = range(first, first + size)
        first += size
    return layout


def _sizes(shares: Mapping[str, int], count: int) -> dict[str, int]:
    if type(count) is not int:
        raise ConfigurationError(f"{count!r} is no number of partitions")
    if count < len(shares):
        raise ConfigurationError(
            f"{count} partitions are too few for {len(shares)} buckets: each needs one"
        )
    exact = {name: count * share / 100 for name, share in shares.items()}
    sizes = {name: max(1, int(share)) for name, share in exact.items()}
    while sum(sizes.values()) > count:  # small buckets got one at the cost of others
        rich = [name for name in sizes if sizes[name] > 1]
        sizes[max(rich, key=lambda name: sizes[name] - exact[name])] -= 1
    while sum(sizes.values()) < count:
        sizes[max(sizes, key=lambda name: exact[name] - sizes[name])] += 1
    return sizes


def _checked_shares(shares: Any) -> list[tuple[str, int]]:
    """Return the pairs of names and percentages; raise `ConfigurationError` if they are wrong."""
    try:
        items = shares.items() if isinstance(shares, Mapping) else shares
        pairs = [(name, share) for name, share in items]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"shares are percentages by name, {{'Platinum': 70, 'Gold': 30}}, not {shares!r}"
        ) from error
    if not pairs:
        raise ConfigurationError("there must be at least one bucket")
    for name, share in pairs:
        if not isinstance(name, str) or not name.strip() or name != name.strip():
            raise ConfigurationError(f"{name!r} is no name for a bucket")
        if type(share) is not int or share < 1:
            raise ConfigurationError(
                f"the share of {name!r} is {share!r}; use a whole percentage of at least 1"
            )
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"there are two buckets {twice[0]!r}")
    total = sum(share for _, share in pairs)
    if total != 100:  # noqa: PLR2004 percent
        raise ConfigurationError(f"the shares sum to {total}, not to 100")
    return pairs
