"""Single flight: equal requests share one call; and a cache over any mapping.

The first ticket with a request leads. Tickets with an equal request that are dispatched while it
is in flight follow it and hold no permit. A follower gets the leader's result or final error; if
the leader ends in quarantine, without a call, its followers make their own. A follower's key is
active like that of any record in flight, so the order contract holds for it too. The mapping
decides how many results it keeps, and for how long.
"""

import logging
from collections.abc import Hashable, MutableMapping
from typing import Any, Final

from thulawa.engine.options import SingleFlight
from thulawa.engine.work_items import Ticket, WorkItem

_log = logging.getLogger("thulawa.engine")

MISSING: Final = object()


class SingleFlightGroup:
    """The requests in flight and the cached results."""

    __slots__ = ("_by", "_cache", "followed", "hits", "leaders")

    def __init__(self, options: SingleFlight, cache: MutableMapping[Hashable, Any] | None) -> None:
        self._by = options.by
        self._cache = cache
        self.leaders: dict[Hashable, Ticket] = {}  # the ticket that makes the call of a request
        self.hits = 0
        self.followed = 0

    def request_of(self, record: WorkItem) -> Hashable:
        """Return the request key of a record; raises what the user's function raises."""
        request = self._by(record)
        hash(request)
        return request

    def cached(self, request: Hashable) -> Any:
        """Return the cached result, or `MISSING`."""
        if self._cache is None:
            return MISSING
        try:
            return self._cache.get(request, MISSING)
        except Exception as error:  # noqa: BLE001 a broken cache is treated as empty
            _log.warning("the cache failed to return a result: %r", error)
            return MISSING

    def lead(self, ticket: Ticket, request: Hashable) -> None:
        """Register a ticket as the leader of a request."""
        ticket.request = request
        ticket.followers = []
        self.leaders[request] = ticket

    def follow(self, ticket: Ticket, leader: Ticket) -> None:
        """Register a ticket as a follower of a leader."""
        assert leader.followers is not None
        leader.followers.append(ticket)
        self.followed += 1

    def complete(self, ticket: Ticket) -> list[Ticket]:
        """Remove a request whose result is final; return the leader's followers."""
        followers, ticket.followers = ticket.followers, None
        if followers is None:
            return []
        del self.leaders[ticket.request]
        return followers

    def store(self, request: Hashable, result: Any) -> None:
        """Store a result in the cache, if there is one and it accepts it."""
        if self._cache is not None:
            try:
                self._cache[request] = result
            except ValueError:  # cachetools: larger than the whole cache
                return
            except Exception as error:  # noqa: BLE001 a broken cache is treated as empty
                _log.warning("the cache failed to store a result: %r", error)

    def followers(self) -> list[Ticket]:
        """Return the tickets that follow a leader."""
        return [ticket for leader in self.leaders.values() for ticket in leader.followers or ()]
