"""A pool of Spark's fair scheduler for each application on a session.

Pools share the cores by weight, however many jobs each has waiting; in a pool jobs run in order.
Spark reads weights from a file when it starts and gives other pools the weight 1, so a pool with
another weight is created here before its first job.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from thulawa.errors import ConfigurationError
from thulawa.spark.internals import add_scheduler_pool

__all__ = ["is_fair", "pool_of"]

_POOL = "spark.scheduler.pool"


def is_fair(spark: SparkSession) -> bool:
    """Return whether a session uses the fair scheduler."""
    return spark.sparkContext.getConf().get("spark.scheduler.mode", "FIFO").upper() == "FAIR"


@contextmanager
def pool_of(spark: SparkSession, application_id: str, weight: int) -> Iterator[None]:
    """Run the jobs that are started in this context in the application's pool.

    Raise `ConfigurationError` for a weight other than 1 in a session without the fair scheduler.
    """
    if not is_fair(spark):
        if weight != 1:
            raise ConfigurationError(
                f"weight={weight} needs a session with the fair scheduler: use thulawa.session(), "
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
        context.setLocalProperty(_POOL, before)  # type: ignore[arg-type]  # None removes it


def _pool(spark: SparkSession, application_id: str, weight: int) -> str:
    """Create the pool of an application and a weight; return its name."""
    name = f"{application_id} weight {weight}"
    add_scheduler_pool(spark, name, weight)
    return name
