"""Hypothesis strategies of random runs: options by family, keys, and errors."""

from collections.abc import Callable
from math import nan
from typing import Any

from hypothesis import strategies as st

from thulawa.engine.options import (
    Adaptive,
    Batch,
    Bounds,
    Lane,
    Lanes,
    Options,
    Quarantine,
    Rate,
    Retry,
    SingleFlight,
)
from thulawa.engine.work_items import WorkItem
from thulawa.errors import (
    Overload,
    Retriable,
    Terminal,
)

KEYS: tuple[Any, ...] = (None, "a", "b", "c", b"a", 1, ("a", 1))
BAD_KEYS: tuple[Any, ...] = ([1], nan, ("a", nan))
AWKWARD = 9  # a value whose request cannot be computed


def request_of(record: WorkItem) -> Any:
    return 1 / 0 if record.value == AWKWARD else record.value


def _is_small(error: Exception) -> bool:
    return "small" in str(error)


one_of = st.sampled_from
ORDERS = one_of(["key", "partition", "none", "emit"])
POLICIES = one_of(["fail", "drop", "dead_letter", "column"])

roomy = st.builds(Bounds, records=one_of([3, 10, 50]), keys=st.just(50), parked=one_of([0, 5]))
tight = st.builds(
    Bounds,
    records=one_of([1, 2, 5, 20]),
    bytes=one_of([1, 4, 20, 1_000]),
    keys=one_of([1, 2, 4, 50]),
    parked=one_of([0, 1, 3, 30]),
    resume_at=one_of([0.0, 0.5, 0.7, 0.99]),
)
retries = st.builds(
    Retry,
    attempts=one_of([1, 2, 4]),
    first=one_of([0.0, 0.02]),
    jitter=one_of([0.0, 0.5, 1.0]),
    on=one_of([Exception, ValueError, (ValueError, OSError), _is_small]),
)
waits = st.builds(Retry, attempts=one_of([1, 2, 3]), first=st.just(0.02))
lanes = st.builds(
    Lanes,
    lanes=one_of(
        [
            (Lane(name="only"),),
            (Lane(name="a", weight=3), Lane(name="b")),
            (Lane(name="a"), Lane(name="b", reserved=0.5)),
            (Lane(name="a", reserved=0.3), Lane(name="b", weight=2, reserved=0.7), Lane(name="c")),
        ]
    ),
    strict=st.booleans(),
    ageing=one_of([None, 0.05, 0.3]),
)
adaptive = st.builds(
    Adaptive, mode=one_of(["enforce", "observe"]), initial=one_of([1, 3]), maximum=one_of([3, 8])
)
quarantines = st.builds(
    Quarantine, after=one_of([1, 2, 3]), seconds=one_of([0.1, 1.0]), keys=one_of([1, 2, 10])
)
rates = st.builds(
    Rate, per_second=one_of([5, 50]), burst=one_of([1, 2.5, 10]), share=one_of([0.5, 1])
)
sizes = one_of([1, 2, 5])
lingers = one_of([0.0, 0.05])
targets = one_of([None, 0.05])
same_key = st.builds(Batch, size=sizes, linger=lingers, target=targets)
across = st.builds(Batch, size=sizes, linger=lingers, target=targets, across_keys=one_of([True]))
single_flight = st.just(SingleFlight(by=request_of))
in_flight = one_of([1, 2, 5, 50])
timeouts = one_of([None, 0.3])
deadlines = one_of([None, 0.5, 1.0])


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def options(draw: st.DrawFn, /, **chosen: st.SearchStrategy[Any]) -> Options:
    """Draw options that `Options` accepts, from a family's choices."""
    picked: dict[str, Any] = {name: draw(choice) for name, choice in chosen.items()}
    order = picked.setdefault("order", draw(ORDERS))
    adapts = picked.get("adaptive") is not None and picked["adaptive"].mode == "enforce"
    if not adapts:
        picked.setdefault("in_flight", draw(in_flight))
    picked["emit"] = "finished" if order == "emit" else draw(one_of(["finished", "partition"]))
    if picked.get("quarantine") is not None:
        picked["order"] = order = "emit" if order in ("none", "emit") else "key"
        picked["emit"] = "finished" if order == "emit" else picked["emit"]
        if picked["on_error"] == "fail":
            picked["on_error"] = "drop"
    batch = picked.get("batch")
    if batch is not None and order in ("none", "emit") and not batch.across_keys:
        picked["batch"] = Batch(
            size=batch.size, linger=batch.linger, target=batch.target, across_keys=True
        )
    if order in ("key", "emit"):
        picked.setdefault("unkeyed", draw(one_of(["ordered", "parallel"])))
    return Options(**picked)


FAMILIES: dict[str, st.SearchStrategy[Options]] = {
    "order": options(bounds=roomy, on_error=POLICIES, retry=waits),
    "retries": options(
        bounds=roomy,
        retry=retries,
        timeout=timeouts,
        deadline=deadlines,
        on_error=POLICIES,
        quarantine=maybe(quarantines),
    ),
    "batches": options(
        bounds=roomy,
        batch=same_key | across,
        retry=retries,
        timeout=timeouts,
        deadline=deadlines,
        on_error=POLICIES,
    ),
    "single_flight": options(
        bounds=roomy,
        single_flight=single_flight,
        retry=waits,
        batch=maybe(across),
        on_error=POLICIES,
        quarantine=maybe(quarantines),
    ),
    "lanes": options(
        bounds=roomy,
        lanes=lanes,
        rate=maybe(rates),
        adaptive=maybe(adaptive),
        retry=waits,
        on_error=POLICIES,
    ),
    "bounds": options(bounds=tight, retry=waits, on_error=POLICIES, batch=maybe(same_key | across)),
    "everything": options(
        bounds=tight | roomy,
        lanes=lanes,
        rate=maybe(rates),
        adaptive=maybe(adaptive),
        retry=retries,
        timeout=timeouts,
        deadline=deadlines,
        batch=maybe(same_key | across),
        single_flight=maybe(single_flight),
        on_error=POLICIES,
        quarantine=maybe(quarantines),
    ),
}


ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: ValueError("small"),
    lambda: OSError("large"),
    lambda: Retriable("again"),
    lambda: Terminal("never"),
    Overload,
    lambda: Overload(retry_after=0.1),
)
