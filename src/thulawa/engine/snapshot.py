"""A snapshot of a scheduler for `Scheduler.statistics`."""

from thulawa.engine.state import SchedulerState
from thulawa.engine.statistics import Bottleneck, LaneStatistics, Statistics


def snapshot(state: SchedulerState, now: float) -> Statistics:
    """Return the statistics of a scheduler at this moment."""
    held, emission, counters = state.backpressure, state.emission, state.counters
    lengths = {key: len(queue) for key, queue in state.queues.items()}
    longest = max(lengths, key=lengths.__getitem__, default=None)
    flight, failing = state.single_flight, state.failing_keys
    return Statistics(
        waiting=sum(lengths.values()) - held.parked,
        in_flight=len(state.calls),
        in_flight_records=sum(len(lead.members()) for lead in state.running()),
        abandoned=len(state.abandoned),
        following=state.following,
        parked=held.parked,
        reordering=emission.buffered(),
        undelivered=len(emission.undelivered),
        held_bytes=held.bytes + held.parked_bytes,
        keys=len(state.queues),
        ready_keys=state.ready.count,
        quarantined_keys=0 if failing is None else failing.quarantined(state.now),
        longest_queue=lengths.get(longest, 0),
        longest_queue_key=longest,
        frontier=emission.frontier.frontier,
        frontier_lag=emission.frontier.lag,
        bottleneck=_bottleneck(state),
        intake_open=held.open,
        limit=state.limit.report(),
        batch_size=state.max_batch(),
        lanes=_lanes(state, now),
        arrived=counters.arrived,
        succeeded=counters.succeeded,
        failed=counters.failed,
        dropped=counters.dropped,
        retries=counters.retries,
        overloads=counters.overloads,
        timeouts=counters.timeouts,
        cache_hits=0 if flight is None else flight.hits,
        followed=0 if flight is None else flight.followed,
        latency=state.latency.summary(),
        residence=state.residence.summary(),
    )


def _lanes(state: SchedulerState, now: float) -> tuple[LaneStatistics, ...]:
    lanes = state.options.lanes.lanes
    waiting = [0] * len(lanes)
    oldest = [now] * len(lanes)
    for queue in state.queues.values():
        for record in queue.records()[queue.parked :]:
            if not 0 <= record.lane < len(lanes):
                continue  # rejected, in a run that has failed
            waiting[record.lane] += 1
            oldest[record.lane] = min(oldest[record.lane], record.arrived)
    in_flight = state.ready.in_flight() if state.several_lanes else [len(state.calls)]
    residence = [histogram.summary() for histogram in state.residence_by_lane]
    return tuple(
        LaneStatistics(
            name=lane.name,
            waiting=waiting[index],
            in_flight=in_flight[index],
            done=residence[index].count,
            oldest=now - oldest[index],
            residence=residence[index],
        )
        for index, lane in enumerate(lanes)
    )


def _bottleneck(state: SchedulerState) -> Bottleneck:
    """Return what keeps the scheduler from having more calls in flight."""
    if state.ready.count and len(state.calls) >= state.limit.permits:
        return "abandoned" if 2 * len(state.abandoned) > len(state.calls) else "limit"
    if state.ready.count and state.rate_limited and state.bucket.ready_at(state.now) > state.now:
        return "rate"
    # queued behind an active ticket of their key; lingering batches do not count
    behind = sum(len(queue) for queue in state.queues.values() if queue.active)
    if not state.backpressure.open:
        closed_by: dict[Bottleneck, int] = {
            "downstream": len(state.emission.undelivered),
            "parked": state.backpressure.excess(),
            "keys": behind + state.emission.buffered(),
        }
        most = max(closed_by, key=closed_by.__getitem__)
        if closed_by[most]:
            return most
    return "keys" if behind else "source"
