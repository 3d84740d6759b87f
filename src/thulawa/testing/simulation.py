"""Run one coroutine in virtual time, under one seed, and leave nothing behind.

`simulate` owns the whole life of a run: a fresh loop, the main coroutine, then the winding
down in which tasks left over are cancelled, async generators closed and threads joined, and
last the question whether anything failed unseen. A failure of any of these leaves with a
note that says how to get exactly this run again.

The main coroutine draws from ``simulation.random``, the loop from a stream of its own: a
change in the number of loop iterations does not change what the models draw.

What the seed cannot hold: threads, real sockets, ``id()`` and the iteration order of sets
of strings, which Python changes from process to process (``PYTHONHASHSEED``).
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from thulawa.testing.loop import VirtualTimeLoop
from thulawa.testing.simulation_errors import Unretrieved

__all__ = ["Simulation", "seeds", "simulate"]

T = TypeVar("T")
SEED_VARIABLE = "THULAWA_SEED"

# For winding down, on top of what the run was given: a run cut off at its limits must still
# be able to clean up.
_GRACE_SECONDS = 3600.0
_GRACE_ITERATIONS = 100_000


@dataclass(frozen=True)
class Simulation:
    """What the main coroutine of a run is handed: the loop, its time, and its randomness."""

    loop: VirtualTimeLoop
    seed: int
    random: Random

    def now(self) -> float:
        """Return the virtual time in seconds; the run began at 0."""
        return self.loop.time()


def simulate(
    main: Callable[[Simulation], Coroutine[Any, Any, T]],
    *,
    seed: int,
    until: float = 3600.0,
    max_iterations: int = 1_000_000,
    patience: float = 5.0,
) -> T:
    """Run ``main(simulation)`` in a fresh `VirtualTimeLoop` and return its result.

    Guarantees: the same seed gives the same run; no task outlives it; an exception that
    nobody looked at fails it (`Unretrieved`); any failure carries a note with the seed and
    the call that replays it. ``until`` bounds virtual time, ``max_iterations`` the turns of
    the loop, ``patience`` the real seconds for which threads may be silent.

    >>> async def main(simulation):
    ...     await asyncio.sleep(60)
    ...     return simulation.now()
    >>> simulate(main, seed=7)
    60.0
    """
    loop = VirtualTimeLoop(seed, until=until, max_iterations=max_iterations, patience=patience)
    try:
        return _run(loop, main)
    except BaseException as error:
        call = f"simulate({_name(main)}, seed={seed}, until={until}, "
        call += f"max_iterations={max_iterations}, patience={patience})"
        error.add_note(_replay(loop, main, call))
        raise
    finally:
        loop.close()


def seeds(n: int, *, first: int = 0) -> Sequence[int]:
    """Name ``n`` seeds to run a test with, or the one in ``THULAWA_SEED`` when that is set.

    Meant for ``@pytest.mark.parametrize("seed", seeds(100))``, or for a plain loop in one
    test when there are thousands.

    >>> list(seeds(3))
    [0, 1, 2]
    """
    wanted = os.environ.get(SEED_VARIABLE)
    if wanted is None:
        return range(first, first + n)
    try:
        return [int(wanted)]
    except ValueError:
        raise ValueError(f"{SEED_VARIABLE} must be one whole number, not {wanted!r}") from None


def _run(loop: VirtualTimeLoop, main: Callable[[Simulation], Coroutine[Any, Any, T]]) -> T:
    simulation = Simulation(loop, loop.seed, Random(f"{loop.seed}/main"))
    try:
        result = loop.run_until_complete(main(simulation))
    except BaseException as error:
        _wind_down(loop)
        if failures := loop.unretrieved():
            error.add_note(f"besides, unseen:\n{_list(failures)}")
        raise
    _wind_down(loop)
    _refuse_unretrieved(loop)
    return result


def _wind_down(loop: VirtualTimeLoop) -> None:
    loop.until = loop.time() + _GRACE_SECONDS
    loop.max_iterations = loop.iterations + _GRACE_ITERATIONS
    # More than one round, since a task may start another while it is being cancelled.
    while left := sorted(asyncio.all_tasks(loop), key=hash):
        _cancel(loop, left)
    loop.run_until_complete(loop.shutdown_asyncgens())
    with loop.outside_work():
        loop.run_until_complete(loop.shutdown_default_executor())


def _cancel(loop: VirtualTimeLoop, tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks))


def _refuse_unretrieved(loop: VirtualTimeLoop) -> None:
    if failures := loop.unretrieved():
        cause = next((error for _, error in failures if error is not None), None)
        raise Unretrieved(f"failed, and nobody looked:\n{_list(failures)}") from cause


def _list(failures: list[tuple[str, BaseException | None]]) -> str:
    return "\n".join(f"  {what}: {error!r}" for what, error in failures)


def _replay(loop: VirtualTimeLoop, main: Callable[..., object], call: str) -> str:
    note = [
        f"seed {loop.seed}, virtual time {loop.time()} s; replay with",
        f"  {call}{_home(main)}",
    ]
    if test := os.environ.get("PYTEST_CURRENT_TEST"):
        note.append(f"  {SEED_VARIABLE}={loop.seed} pytest '{test.rpartition(' ')[0]}'")
    return "\n".join(note)


def _name(main: Callable[..., object]) -> str:
    return getattr(main, "__name__", repr(main))


def _home(main: Callable[..., object]) -> str:
    code = getattr(main, "__code__", None)
    return f"  # {code.co_filename}:{code.co_firstlineno}" if code else ""
