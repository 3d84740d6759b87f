"""Several applications on one session: each has a pool of Spark's fair scheduler.

Pools share the cores by weight, whatever each of them has waiting; within a pool jobs go one
after the other. Spark reads weights from a file when it starts, and gives every other pool the
weight 1; so a pool with a weight of its own is made here, before its first job.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from thulawa.core.errors import ConfigurationError
from thulawa.spark.internals import add_scheduler_pool

__all__ = ["is_fair", "pool_of"]

_POOL = "spark.scheduler.pool"


def is_fair(spark: SparkSession) -> bool:
    """Tell whether a session shares its cores between pools."""
    return spark.sparkContext.getConf().get("spark.scheduler.mode", "FIFO").upper() == "FAIR"


@contextmanager
def pool_of(spark: SparkSession, application_id: str, weight: int) -> Iterator[None]:
    """Let what is started here run in the application's pool.

    In a session that is not fair there is no such thing: a weight is refused then.
    """
    if not is_fair(spark):
        if weight != 1:
            raise ConfigurationError(
                f"weight={weight} needs a session whose scheduler is fair: take thulawa.session(), "
                'or set "spark.scheduler.mode" to "FAIR" before the session starts'
            )
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_POOL)
    context.setLocalProperty(_POOL, _pool(spark, application_id, weight))
    try:
        yield
    finally:
        context.setLocalProperty(_POOL, before)  # type: ignore[arg-type]  # None takes it off


def _pool(spark: SparkSession, application_id: str, weight: int) -> str:
    """Give the name of the pool; a weight that has changed since is another pool."""
    name = f"{application_id} weight {weight}"
    add_scheduler_pool(spark, name, weight)
    return name
