"""Many keys of one partition at once, each key in order, nothing lost.

The root holds the names of everyday use. The rest is in namespaces: `thulawa.streams` (the DSL),
`thulawa.engine`, `thulawa.kafka`, `thulawa.embedded` (the embedded log), `thulawa.priority`,
`thulawa.health`, `thulawa.testing` and `thulawa.errors`. Names are imported when first used, so
that a Spark worker that needs the engine alone does not pay for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from thulawa.core.lazy import lazy_names

if TYPE_CHECKING:
    from thulawa.engine import Adaptive as Adaptive
    from thulawa.engine import Batch as Batch
    from thulawa.engine import Rate as Rate
    from thulawa.engine import Retry as Retry
    from thulawa.errors import Overload as Overload
    from thulawa.errors import Retriable as Retriable
    from thulawa.errors import Terminal as Terminal
    from thulawa.errors import ThulawaError as ThulawaError
    from thulawa.runtime.caches import Cache as Cache
    from thulawa.spark.application import Streams as Streams
    from thulawa.spark.map_by_key.api import flat_map_by_key as flat_map_by_key
    from thulawa.spark.map_by_key.api import map_by_key as map_by_key
    from thulawa.spark.map_by_key.error_split import split_errors as split_errors
    from thulawa.spark.session.spark_session import configure as configure
    from thulawa.spark.session.spark_session import session as session
    from thulawa.streams import Serdes as Serdes
    from thulawa.streams import StreamsBuilder as StreamsBuilder
    from thulawa.streams import deterministic as deterministic

__version__ = "0.1.0"

_NAMESPACES = {"embedded", "engine", "errors", "health", "kafka", "priority", "streams", "testing"}
__all__, _get, __dir__ = lazy_names(
    __name__,
    {
        "thulawa.errors": (
            "Overload",
            "Retriable",
            "Terminal",
            "ThulawaError",
        ),
        "thulawa.engine": (
            "Adaptive",
            "Batch",
            "Rate",
            "Retry",
        ),
        "thulawa.runtime.caches": ("Cache",),
        "thulawa.spark.application": ("Streams",),
        "thulawa.spark.map_by_key.api": (
            "flat_map_by_key",
            "map_by_key",
        ),
        "thulawa.spark.map_by_key.error_split": ("split_errors",),
        "thulawa.spark.session.spark_session": (
            "configure",
            "session",
        ),
        "thulawa.streams": (
            "Serdes",
            "StreamsBuilder",
            "deterministic",
        ),
    },
)


def __getattr__(name: str) -> Any:
    return import_module(f"thulawa.{name}") if name in _NAMESPACES else _get(name)
