"""An operator as it is sent from the driver to the workers."""

from collections.abc import Callable, Hashable, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa

from thulawa.engine import Options
from thulawa.spark.map_by_key.dead_letters import UNKNOWN, DeadLetterTopic, RowIdentity
from thulawa.spark.map_by_key.lane_report import LaneReport

ERROR_COLUMN = "_error"
ERROR_TYPE = pa.struct(
    [
        ("type", pa.string()),
        ("message", pa.string()),
        ("offset", pa.int64()),
        ("attempts", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A user's function with its options.

    ``identity`` is the same in every worker and micro-batch for one `map_by_key`, so that a worker
    retains its open resource and what its engine has learned.
    """

    name: str
    function: Callable[..., Any]
    flat: bool
    keys: tuple[str, ...]
    returns: pa.Schema
    keep: tuple[str, ...]
    options: Options
    timestamp: str | None = None
    lane: str | Callable[[Any], str | int] | None = None
    resource: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    cache: Callable[[], MutableMapping[Hashable, Any]] | None = None
    dead_letters: DeadLetterTopic | None = None
    row_identity: RowIdentity = UNKNOWN
    report: LaneReport | None = None
    identity: str = field(default_factory=lambda: uuid4().hex)

    @property
    def signature(self) -> str:
        """A text that identifies the operator in its query, the same after a restart."""
        return repr((self.name, self.keys, self.keep, self.flat, self.returns.to_string()))
