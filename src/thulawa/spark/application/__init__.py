"""Applications: configuration → session → query; start, stop, state."""

from thulawa.spark.application.restarts import Restart
from thulawa.spark.application.states import State
from thulawa.spark.application.streams import Streams

__all__ = ["Restart", "State", "Streams"]
