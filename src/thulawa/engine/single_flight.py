"""One call for equal questions: single flight, and a cache over any mapping.

The first ticket with a question leads; tickets with the same question that come while it is
under way follow it and hold no permit. What the leader gets, its followers get, result or
final error; a leader that ends in quarantine has neither, and its followers ask for themselves.
A follower's key is taken like that of any record in flight, so the order contract does not
notice the difference. The mapping decides how long answers live and how many.
"""

import logging
from collections.abc import Hashable, MutableMapping
from typing import Any, Final

from thulawa.engine.model import Record, Ticket
from thulawa.engine.options import Sharing

__all__ = ["MISSING", "Answers"]

_log = logging.getLogger("thulawa.engine")

MISSING: Final = object()


class Answers:
    """The questions under way and the answers kept."""

    __slots__ = ("_by", "_cache", "_leaders", "followed", "hits")

    def __init__(self, options: Sharing, cache: MutableMapping[Hashable, Any] | None) -> None:
        self._by = options.by
        self._cache = cache
        self._leaders: dict[Hashable, Ticket] = {}
        self.hits = 0
        self.followed = 0

    def question(self, record: Record) -> Hashable:
        """Give what the record asks for; raises what the user's function raises."""
        question = self._by(record)
        hash(question)
        return question

    def known(self, question: Hashable) -> Any:
        """Give the kept answer, or `MISSING`."""
        if self._cache is None:
            return MISSING
        try:
            return self._cache.get(question, MISSING)
        except Exception as error:  # noqa: BLE001 a broken cache is no cache
            _log.warning("the cache failed to answer: %r", error)
            return MISSING

    def leader(self, question: Hashable) -> Ticket | None:
        """Give the ticket that is asking this now."""
        return self._leaders.get(question)

    def lead(self, ticket: Ticket, question: Hashable) -> None:
        """Note that this ticket asks."""
        ticket.question = question
        ticket.followers = []
        self._leaders[question] = ticket

    def follow(self, ticket: Ticket, leader: Ticket) -> None:
        """Have this ticket wait for the leader's answer."""
        assert leader.followers is not None
        leader.followers.append(ticket)
        self.followed += 1

    def settle(self, ticket: Ticket) -> list[Ticket]:
        """Note that this ticket's answer is final; give those who wait for it."""
        followers, ticket.followers = ticket.followers, None
        if followers is None:
            return []
        del self._leaders[ticket.question]
        return followers

    def keep(self, question: Hashable, answer: Any) -> None:
        """Keep an answer, if there is a cache that will have it."""
        if self._cache is not None:
            try:
                self._cache[question] = answer
            except ValueError:  # cachetools: larger than the whole cache
                return
            except Exception as error:  # noqa: BLE001 a broken cache is no cache
                _log.warning("the cache failed to keep an answer: %r", error)

    def leaders(self) -> list[Ticket]:
        """List the tickets that ask."""
        return list(self._leaders.values())

    def followers(self) -> list[Ticket]:
        """List the tickets that wait for another's answer."""
        return [ticket for leader in self.leaders() for ticket in leader.followers or ()]
