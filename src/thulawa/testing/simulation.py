"""Run one coroutine in virtual time, under one seed, and clean up completely.

`simulate` creates a fresh loop, runs the main coroutine, cancels the remaining tasks, closes async
generators, joins threads, and checks for exceptions that were never retrieved. Every failure
carries a note with the call that repeats exactly this run.

The main coroutine draws from ``simulation.random``, the loop from a stream of its own: the number
of loop iterations does not change what the models draw.

The seed does not control threads, real sockets, ``id()`` and the iteration order of sets of
strings, which Python changes from process to process (``PYTHONHASHSEED``).
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from thulawa.testing.loop import Unretrieved, VirtualTimeLoop

T = TypeVar("T")
SEED_VARIABLE = "THULAWA_SEED"

# Added to the limits of the run for the clean-up, which must also work after an Overrun.
_GRACE_SECONDS = 3600.0
_GRACE_ITERATIONS = 100_000


@dataclass(frozen=True)
class Simulation:
    """The argument of the main coroutine: the loop, its time and its randomness."""

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
    thread_timeout: float = 5.0,
) -> T:
    """Run ``main(simulation)`` in a fresh `VirtualTimeLoop` and return its result.

    The same seed repeats the run; no task outlives it; an exception that was never retrieved fails
    it (`Unretrieved`); every failure carries a note with the seed and the call that repeats it.
    ``until`` limits virtual time, ``max_iterations`` the iterations of the loop, ``thread_timeout``
    the real seconds to wait for threads.

    >>> async def main(simulation):
    ...     await asyncio.sleep(60)
    ...     return simulation.now()
    >>> simulate(main, seed=7)
    60.0
    """
    loop = VirtualTimeLoop(
        seed, until=until, max_iterations=max_iterations, thread_timeout=thread_timeout
    )
    try:
        return _run(loop, main)
    except BaseException as error:
        code = getattr(main, "__code__", None)
        location = f"  # {code.co_filename}:{code.co_firstlineno}" if code else ""
        note = (
            f"seed {seed}, virtual time {loop.time()} s; replay with\n"
            f"  simulate({getattr(main, '__name__', repr(main))}, seed={seed}, until={until}, "
            f"max_iterations={max_iterations}, thread_timeout={thread_timeout}){location}"
        )
        if test := os.environ.get("PYTEST_CURRENT_TEST"):
            note += f"\n  {SEED_VARIABLE}={seed} pytest '{test.rpartition(' ')[0]}'"
        error.add_note(note)
        raise
    finally:
        loop.close()


def seeds(n: int, *, first: int = 0) -> Sequence[int]:
    """Return ``n`` seeds to run a test with, or the one in ``THULAWA_SEED`` if that is set.

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
            error.add_note(f"also never retrieved:\n{_list(failures)}")
        raise
    _wind_down(loop)
    if failures := loop.unretrieved():
        cause = next((error for _, error in failures if error is not None), None)
        raise Unretrieved(f"exceptions were never retrieved:\n{_list(failures)}") from cause
    return result


def _wind_down(loop: VirtualTimeLoop) -> None:
    loop.until = loop.time() + _GRACE_SECONDS
    loop.max_iterations = loop.iterations + _GRACE_ITERATIONS
    # Several rounds, because a task may start another one while it is being cancelled.
    while left := sorted(asyncio.all_tasks(loop), key=hash):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    with loop.thread_work():
        loop.run_until_complete(loop.shutdown_default_executor())


def _list(failures: list[tuple[str, BaseException | None]]) -> str:
    return "\n".join(f"  {what}: {error!r}" for what, error in failures)
