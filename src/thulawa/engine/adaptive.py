"""An adaptive concurrency limit that finds the server's capacity.

It follows Netflix's Gradient2 and Envoy's gradient controller, without their known faults. A
*window* of calls yields one latency, their geometric mean, which heavy tails hardly move. Its ratio
to the *baseline*, the latency without queueing, is the signal, because behind a saturated server
latency is proportional to the calls in flight (Little's law). Below the target (half-way to
``tolerance``) the limit steps up, above it down, by at most √L. The stride widens while the
direction lasts and narrows when it changes (as in Rprop), so small limits do not oscillate; above
``tolerance`` the limit is cut to what the ratio implies, ×0.9 to ×0.5.

Invariants. ``minimum <= permits <= maximum``. The limit changes at the end of a window only, and
only if the limit was reached in it: idle, bursty or key-starved periods hold it and are not
measured. Calls started under an old limit are not measured: after a change the window waits for
about a latency.

A ratio is only as good as its baseline, which cannot be measured on a steadily overloaded server.
So the baseline is measured without queueing: *probing* starts with two calls and doubles up to the
goal (``initial`` at first), and a *dip* from time to time spends a window at half the limit. If
latency halves with the limit there is still a queue, and the dip goes on; if not, it is the
server's own latency. So two cuts in a row end in a dip, and a server that merely became slower
keeps its limit. At the minimum the latency itself becomes the baseline if it is far off after five
windows. After an overload the limit doubles back to half of where it was.

Overload (timeouts, 429, 503) cuts by the share of call time it took, which is the share of the
limit that was too much even where rejections are quick. Application errors stop growth above 10 %
and cut above 50 %. Mode ``observe`` can neither probe nor dip: it takes the baseline from calls
that end with at most half of the permits in flight.

Measured in virtual time (152 runs; capacity 4 to 100, latency constant or lognormal): mean limit
0.97 to 1.16 of the capacity, throughput 91 to 100 % of the server's, dips included. Tried and
rejected, with the number of these runs that ended over 20 % off the capacity or under 90 % of the
throughput (now: none):

- windows of 25 calls whatever the noise: 75. So a window goes on until its standard error is 5 %,
  at most to 200 calls. Ending it once it is clearly good or bad favours extremes.
- the full √L step always: 34; small limits oscillate.
- refining the baseline by good windows: 31; queueing raises it.
- no dips: 4; one in 100 windows from the start: 3.
- a quicker window as the new baseline, a minimum of noise: 2. It triggers a dip.
- a dead band instead of steps down: the limit settles at its upper edge.
"""

from math import exp, inf, log, sqrt
from random import Random
from typing import Final, Literal

from thulawa.engine.limits import Limit, LimitReport, Verdict
from thulawa.engine.options import Adaptive

# Quicker successes made no remote call; slower ones are a broken clock.
FASTEST: Final = 1e-4
SLOWEST: Final = 1e6
# Calls in a window: while probing or stuck at the minimum; otherwise; and at most, with noise.
FEW: Final = 10
MANY: Final = 25
MOST: Final = 200
# Standard error at which a window's log-latency is precise enough.
PRECISION: Final = 0.05
# Latencies until the calls of the old limit have ended; on the way down the queue drains too.
SETTLE_UP: Final = 1.25
SETTLE_DOWN: Final = 2.0
# Windows between dips; doubled from the first to the last while dips agree.
DIP_FIRST: Final = 10
DIP_LAST: Final = 100
# A log-latency fallen by this at half the limit (log 2 is 0.69) shows a queue.
STILL_QUEUED: Final = 0.5
# Below this ratio the baseline is measured again: the server has become faster.
FASTER: Final = 0.85
# So it is when the limit has fallen this far since the last dip.
DRIFTED: Final = 0.6
STUCK: Final = 5
STRIDE_MIN: Final = 0.05
STRIDE_AFTER_PROBE: Final = 0.25
STRIDE_WIDEN: Final = 1.5
STRIDE_NARROW: Final = 0.7
CUT_LEAST: Final = 0.9
CUT_MOST: Final = 0.5
# Shares of a window: overload that cuts, errors that stop growth, failures that cut.
OVERLOAD: Final = 0.05
ERRORS: Final = 0.1
FAILURES: Final = 0.5

UNBOUND: Final = "holding: limit is not reached"


class _Window:
    """Sums over the calls since the last decision."""

    __slots__ = ("count", "enough", "failures", "lost", "overloads", "slack", "squares", "sum")

    def __init__(self) -> None:
        self.restart(MANY)

    def restart(self, enough: int) -> None:
        self.enough = enough
        self.count: int = 0
        self.failures: int = 0
        self.overloads: int = 0
        self.slack: int = 0
        self.sum: float = 0.0
        self.squares: float = 0.0
        self.lost: float = 0.0

    @property
    def successes(self) -> int:
        return self.count - self.failures - self.overloads

    @property
    def has_errors(self) -> bool:
        return self.failures + self.overloads > ERRORS * self.count

    def extend_until(self, error: float) -> bool:
        """Extend the window and return True while the standard error is above ``error``."""
        successes = self.successes
        mean = self.sum / successes
        if self.count >= MOST or self.squares / successes - mean * mean <= error**2 * successes:
            return False
        self.enough += self.enough // 4
        return True


class _Baseline:
    """The log-latency without a queue, averaged over about the last three readings."""

    __slots__ = ("latency", "weight")

    def __init__(self) -> None:
        self.latency = 0.0
        self.weight = 0

    def learn(self, latency: float, calls: int) -> bool:
        """Average old and new equally; return whether they agree, replace the old if far off."""
        self.weight = min(self.weight, calls)
        return self.refine(latency, calls)

    def refine(self, latency: float, calls: int) -> bool:
        """Average the reading in, weighted by its calls; return whether it agrees."""
        difference = abs(latency - self.latency)
        weight = min(self.weight, MOST) if difference < 5 * PRECISION else 0
        self.latency = (self.latency * weight + latency * calls) / (weight + calls)
        self.weight = weight + calls
        return difference < 3 * PRECISION

    def ratio(self, latency: float) -> float:
        return exp(latency - self.latency)


class AdaptiveLimit(Limit):
    """A limit that finds the server's capacity, as described at the top of the module.

    In mode ``observe`` the permits stay at ``in_flight``; mode ``enforce`` does not use it.
    """

    adapts = True

    def __init__(self, options: Adaptive, in_flight: int, rng: Random) -> None:
        self._options = options
        self._rng = rng
        self._target = (1 + options.tolerance) / 2
        self._watching = options.mode == "observe"
        self._phase: Literal["probing", "dipping", "steady"] = "probing"
        self._reason = "probing"
        self._goal = float(options.initial)
        self._limit = self._goal if self._watching else max(options.minimum, min(self._goal, 2.0))
        self.permits = in_flight if self._watching else int(self._limit)
        self._baseline = _Baseline()
        self._quiet = _Window()
        self._window = _Window()
        self._latency = -inf
        self._settled = -inf
        self._cut_from = 0.0
        self._dip_from = (0.0, 0.0)
        self._highest, self._doubt = 0.0, False
        self._stride = self._error = 1.0
        self._stuck = self._changes = 0
        self._plan_dip(DIP_FIRST)
        self._restart()

    def report(self) -> LimitReport:
        """Return the limit in force, the proposed one and the reason."""
        return LimitReport(
            mode=self._options.mode,
            permits=self.permits,
            proposed=self._limit,
            baseline=exp(self._baseline.latency) if self._baseline.weight else None,
            latency=exp(self._latency) if self._latency > -inf else None,
            reason=self._reason,
            changes=self._changes,
        )

    def observe(self, latency: float, verdict: Verdict, in_flight: int, now: float) -> None:
        """Account for a finished call: only sums, until the window ends."""
        window = self._window
        permits = self.permits
        if in_flight >= permits:
            window.slack = 0
        elif not self._is_bound(window, latency, verdict, in_flight):
            return
        if now < self._settled:
            return
        if verdict == "success":
            if not FASTEST <= latency <= SLOWEST:
                return
            value = log(latency)
            window.sum += value
            window.squares += value * value
        elif verdict == "overload":
            window.overloads += 1
            window.lost += min(max(latency, 0.0), SLOWEST)
        else:
            window.failures += 1
        window.count += 1
        if window.count >= window.enough and in_flight >= permits:
            self._end_window(window, now)

    def _is_bound(self, window: _Window, latency: float, verdict: Verdict, in_flight: int) -> bool:
        """Return False if the limit is not reached, other than briefly between two refills."""
        window.slack += 1
        if window.slack > self.permits:
            self._hold(UNBOUND)
            return False
        quiet = 2 * in_flight < self.permits
        if quiet and self._watching:
            self._observe_quiet(latency, verdict)
        return not quiet

    def _observe_quiet(self, latency: float, verdict: Verdict) -> None:
        quiet = self._quiet
        if verdict == "success" and FASTEST <= latency <= SLOWEST:
            quiet.sum += log(latency)
            quiet.count += 1
            if quiet.count >= quiet.enough:
                self._baseline.learn(quiet.sum / quiet.count, quiet.count)
                quiet.restart(MANY)

    def _end_window(self, window: _Window, now: float) -> None:
        overloaded = window.overloads > OVERLOAD * window.count
        successes = window.successes
        if successes:
            rough = self._phase == "probing" and self._baseline.weight
            if not overloaded and window.extend_until(2 * PRECISION if rough else PRECISION):
                return
            self._latency = window.sum / successes
        elif window.overloads:
            self._latency = log(max(FASTEST, window.lost / window.overloads))
        if overloaded:
            useful = successes * exp(self._latency)
            self._cut(useful / (useful + window.lost) if useful else 0.0, "cut: overload", now)
        elif window.failures > FAILURES * window.count:
            self._cut(1.0, "cut: failures", now)
        else:
            self._judge(successes, now)

    def _judge(self, successes: int, now: float) -> None:
        """Change the limit by the latency of a window without overload."""
        if not self._baseline.weight:
            self._baseline.learn(self._latency, successes)
        ratio = self._baseline.ratio(self._latency)
        tolerable = ratio <= self._options.tolerance
        if self._watching:
            self._watch(ratio, successes, now)
        elif self._phase == "dipping":
            self._end_dip(successes, now)
        elif not tolerable and self._stuck >= STUCK:
            self._baseline = _Baseline()
            self._baseline.learn(self._latency, successes)
            self._recover(successes, now)
        elif not tolerable and self._cut_from and self._can_dip():
            self._doubt = True
            self._dip(now)
        elif not tolerable:
            self._cut(self._target / ratio, "cut: latency", now)
        elif self._cut_from and self._limit < self._goal / 2:
            self._recover(successes, now)
        elif self._phase == "probing":
            self._probe(ratio, successes, now)
        else:
            self._steer(ratio, successes, now)

    def _watch(self, ratio: float, successes: int, now: float) -> None:
        """Propose a limit, in mode ``observe``, up to the calls really in flight."""
        if ratio < FASTER:
            self._baseline.learn(self._latency, successes)
        if ratio > self._target:
            self._cut(self._target / ratio, "cut: latency", now)
        elif self._window.has_errors:
            self._hold("holding: errors")
        elif self._limit < self.permits:
            self._move(self._limit + sqrt(self._limit), "growing", now)
        else:
            self._hold(UNBOUND)

    def _probe(self, ratio: float, successes: int, now: float) -> None:
        """Double towards the goal, averaging the baseline on the way."""
        # a ratio of exactly 1 means that the baseline is this very window
        if 1 / self._target < ratio < self._target and ratio != 1.0:
            self._baseline.refine(self._latency, successes)
        if self._window.has_errors:
            self._hold("holding: errors")
        elif self._limit < self._goal:
            self._move(min(self._goal, 2 * self._limit), "probing", now)
        else:
            self._phase, self._cut_from = "steady", 0.0
            self._hold("holding: probing is over")

    def _steer(self, ratio: float, successes: int, now: float) -> None:
        """Step towards the target, wider while the direction lasts, narrower when it turns."""
        self._cut_from, self._stuck = 0.0, 0
        self._dip_in -= 1
        self._highest = max(self._highest, self._limit)
        self._doubt = ratio < FASTER or self._limit < DRIFTED * self._highest
        if self.permits == self._options.minimum:
            self._baseline.learn(self._latency, successes)
        elif (self._doubt or self._dip_in <= 0) and self._can_dip():
            self._goal = self._limit
            self._dip(now)
            return
        error = max(-1.0, min(1.0, (self._target - ratio) / (self._target - 1)))
        if error > 0 and (self._window.has_errors or self._limit >= self._options.maximum):
            self._hold("holding: errors" if self._window.has_errors else "holding: at the maximum")
            return
        lasts = (error > 0) == (self._error > 0)
        stride = self._stride * (STRIDE_WIDEN if lasts else STRIDE_NARROW)
        self._stride, self._error = max(STRIDE_MIN, min(1.0, stride)), error
        step = sqrt(self._limit) * self._stride * error
        self._move(self._limit + step, "growing" if error > 0 else "trimming: latency", now)

    def _cut(self, factor: float, reason: str, now: float) -> None:
        """Cut to ``factor``, within bounds, and remember the limit before."""
        if self._watching:
            self._move((self._limit + self.permits * factor) / 2, reason, now)
            return
        if not self._cut_from:
            self._cut_from = self._limit
            if self._phase == "steady":
                self._goal = self._limit
        self._stride = STRIDE_AFTER_PROBE if self._phase == "probing" else STRIDE_MIN
        self._phase, self._error = "steady", 1.0
        if self._limit <= self._options.minimum:
            self._stuck += 1
        self._move(self._limit * max(CUT_MOST, min(CUT_LEAST, factor)), reason, now)

    def _recover(self, successes: int, now: float) -> None:
        """Probe again, up to half of the limit before the cuts."""
        self._phase, self._goal = "probing", max(self._limit, self._goal / 2)
        self._stride, self._stuck, self._cut_from = 1.0, 0, 0.0
        self._probe(1.0, successes, now)

    def _can_dip(self) -> bool:
        return self._limit >= 2 * self._options.minimum

    def _plan_dip(self, gap: int) -> None:
        self._dip_gap = gap
        self._dip_in = round(gap * self._rng.uniform(0.85, 1.15))

    def _dip(self, now: float) -> None:
        self._phase = "dipping"
        self._dip_from = (self._limit, self._latency)
        self._move(self._limit / 2, "probing: baseline at half the limit", now)

    def _end_dip(self, successes: int, now: float) -> None:
        limit, latency = self._dip_from
        if self._latency < latency - STILL_QUEUED and self._can_dip():
            self._goal = self._limit
            self._dip(now)
            return
        if self._doubt:
            self._baseline = _Baseline()
        agreed = self._baseline.learn(self._latency, successes) and not self._doubt
        self._plan_dip(min(DIP_LAST, 2 * self._dip_gap) if agreed else DIP_FIRST)
        self._highest, self._doubt = limit, False
        self._phase, self._cut_from = "probing" if self._goal > limit else "steady", 0.0
        self._move(limit, "probing: baseline measured", now)

    def _hold(self, reason: str) -> None:
        self._reason = reason
        self._restart()

    def _move(self, limit: float, reason: str, now: float) -> None:
        before = int(self._limit)
        self._limit = max(float(self._options.minimum), min(float(self._options.maximum), limit))
        if int(self._limit) != before:
            self._changes += 1
            if not self._watching:
                self.permits = int(self._limit)
                settle = SETTLE_UP if self.permits > before else SETTLE_DOWN
                self._settled = now + settle * exp(self._latency)
        self._hold(reason)

    def _restart(self) -> None:
        few = self._phase == "probing" or self._stuck
        self._window.restart(max(FEW if few else MANY, self.permits))
