"""Objects that are live before a task are not scanned after it, and still collected later."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from thulawa.core.gc_freeze import freeze_gc, gc_disabled


class Node:
    """Holds itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_frozen_objects_are_not_scanned() -> None:
    kept = Node()
    looked_at = []
    for _ in range(100):
        freeze_gc()
        looked_at.append(any(one is kept for one in gc.get_objects()))
    assert looked_at.count(True) == 1


def test_frozen_objects_that_become_garbage_are_collected_in_the_end() -> None:
    node = Node()
    gone = weakref.ref(node)
    freeze_gc()
    del node
    for _ in range(100):
        freeze_gc()
        gc.collect()  # as Spark's worker does after each task
    assert gone() is None


def test_the_collector_is_disabled_and_then_restored() -> None:
    with gc_disabled():
        assert not gc.isenabled()
    assert gc.isenabled()
