"""Applications: configuration → session → query; start, stop, state."""

from thulawa.app.counting import WindowCounts
from thulawa.app.restarting import Restart
from thulawa.app.states import State
from thulawa.app.streams import Streams

__all__ = ["Restart", "State", "Streams", "WindowCounts"]
