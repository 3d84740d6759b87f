"""Buckets: some events are more urgent than others, and Kafka has no priorities.

The partitions of a topic are grouped into buckets by percentage. A record's bucket comes from its
key, and its key keeps it in one partition of that bucket, so that order per key holds. Both
sides compute the layout from the same few numbers, and a fingerprint tells whether they agree.

Sizes are by largest remainder, at least one partition each: rounding each share for itself
would leave buckets without a partition, or give out more than there are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from thulawa.core.errors import ConfigurationError, RecordError
from thulawa.core.partitioning import partition_of

__all__ = ["Buckets", "UnknownBucket"]


class UnknownBucket(RecordError, ValueError):
    """A key whose bucket is not among those there are."""

    action = "name its bucket, or choose default=, unknown='drop' or unknown='spread'"


@dataclass(frozen=True, slots=True)
class Buckets:
    """Group partitions by urgency; the shares are whole percentages that sum to 100.

    The bucket of a key is the text before the first ``delimiter``, or what ``bucket_of`` says of
    it. A key of no known bucket raises `UnknownBucket`, goes to the ``default`` bucket, is
    dropped, or is spread over all partitions, as ``unknown`` says.

    >>> buckets = Buckets({"Platinum": 70, "Gold": 30}, delimiter="-")
    >>> buckets.layout(6)
    {'Platinum': [0, 1, 2, 3], 'Gold': [4, 5]}
    >>> buckets.bucket("Gold-7"), buckets.partition("Gold-7", 6)
    ('Gold', 4)
    """

    shares: Mapping[str, int] | Iterable[tuple[str, int]]
    delimiter: str = "-"
    bucket_of: Callable[[Any], str | None] | None = None
    default: str | None = None
    unknown: Literal["fail", "drop", "spread"] = "fail"

    def __post_init__(self) -> None:
        shares = self.shares
        pairs = list(shares.items()) if isinstance(shares, Mapping) else list(shares)
        names = [name for name, _ in pairs]
        _check_shares(pairs)
        if not self.delimiter:
            raise ConfigurationError("delimiter must not be empty")
        if self.unknown not in ("fail", "drop", "spread"):
            raise ConfigurationError(
                f"unknown={self.unknown!r} is not known; use 'fail', 'drop' or 'spread', "
                "or name a default bucket"
            )
        if self.default is not None and self.default not in names:
            raise ConfigurationError(f"default={self.default!r} is none of the buckets {names}")
        if self.default is not None and self.unknown != "fail":
            raise ConfigurationError("give default= or unknown=, not both: they answer the same")
        # the largest first; of equal ones the one that was named first
        ordered = sorted(pairs, key=lambda pair: -pair[1])
        object.__setattr__(self, "shares", dict(ordered))

    @property
    def names(self) -> list[str]:
        """The buckets, the largest first."""
        return list(self._shares)

    @property
    def fingerprint(self) -> str:
        """What two sides must have in common to agree on the layout."""
        text = repr((list(self._shares.items()), self.delimiter, self.default, self.unknown))
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def layout(self, partitions: int) -> dict[str, list[int]]:
        """Give the partitions of each bucket; refuse fewer partitions than buckets."""
        sizes = self.sizes(partitions)
        layout, first = {}, 0
        for name, size in sizes.items():
            layout[name] = list(range(first, first + size))
            first += size
        return layout

    def sizes(self, count: int) -> dict[str, int]:
        """Share out ``count`` things by largest remainder, at least one to each bucket."""
        shares = self._shares
        if count < len(shares):
            raise ConfigurationError(
                f"{count} partitions are too few for {len(shares)} buckets: each needs one"
            )
        exact = {name: count * share / 100 for name, share in shares.items()}
        sizes = {name: max(1, int(share)) for name, share in exact.items()}
        while sum(sizes.values()) > count:  # those that got their one at the cost of the others
            rich = [name for name in sizes if sizes[name] > 1]
            sizes[max(rich, key=lambda name: sizes[name] - exact[name])] -= 1
        while sum(sizes.values()) < count:
            sizes[max(sizes, key=lambda name: exact[name] - sizes[name])] += 1
        return sizes

    def bucket(self, key: Any) -> str | None:
        """Name the bucket of a key; None: it has none, and is dropped or spread."""
        found = self._named(key)
        if found in self._shares:
            return found
        if self.default is not None:
            return self.default
        if self.unknown == "fail":
            raise UnknownBucket(
                f"the key names no bucket; there are {self.names}",
                key=key if isinstance(key, str | bytes | int) else None,
            )
        return None

    def partition(self, key: Any, partitions: int) -> int | None:
        """Give the partition of a key: always the same one. None: it is dropped."""
        bucket = self.bucket(key)
        data = key.encode() if isinstance(key, str) else key
        if bucket is not None:
            places = self.layout(partitions)[bucket]
            return places[partition_of(data, len(places))]
        return partition_of(data, partitions) if self.unknown == "spread" else None

    def assign(self, partitions: int, members: Mapping[str, str]) -> dict[str, list[int]]:
        """Give each member of a consumer group its partitions; members name their bucket.

        The partitions of a bucket are dealt out to its members; those of a bucket without any
        go to whoever has least. Every partition is read by exactly one.

        >>> buckets = Buckets({"Platinum": 70, "Gold": 30})
        >>> buckets.assign(6, {"a": "Platinum", "b": "Platinum"})
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

    def check(self, fingerprint: str) -> None:
        """Refuse what was written by another layout."""
        if fingerprint != self.fingerprint:
            raise ConfigurationError(
                "the other side groups partitions otherwise: give producers and consumers the "
                "same shares, in the same order, with the same delimiter"
            )

    @property
    def _shares(self) -> dict[str, int]:
        assert isinstance(self.shares, dict)
        return self.shares

    def _named(self, key: Any) -> str | None:
        if self.bucket_of is not None:
            return self.bucket_of(key)
        if isinstance(key, bytes):
            key = key.decode(errors="replace")
        if not isinstance(key, str):
            return None
        return key.partition(self.delimiter)[0].strip()


def _check_shares(pairs: Sequence[tuple[Any, Any]]) -> None:
    names = [name for name, _ in pairs]
    if not pairs:
        raise ConfigurationError("there must be at least one bucket")
    for name, share in pairs:
        if not isinstance(name, str) or not name.strip() or name != name.strip():
            raise ConfigurationError(f"{name!r} is no name for a bucket")
        if type(share) is not int or share < 1:
            raise ConfigurationError(
                f"the share of {name!r} is {share!r}; use a whole percentage of at least 1"
            )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"there are two buckets {twice[0]!r}")
    total = sum(share for _, share in pairs)
    if total != 100:  # noqa: PLR2004 percent
        raise ConfigurationError(f"the shares sum to {total}, not to 100")
