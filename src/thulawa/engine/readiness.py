"""A key becomes ready: at once, or when its batch is full or has lingered long enough."""

from thulawa.engine.queues import KeyQueue
from thulawa.engine.state import SchedulerState


def make_ready(state: SchedulerState, queue: KeyQueue) -> None:
    """Make a key ready that has a record at its head and no active ticket.

    With ``Batch.linger`` its batch may wait to be filled first; retries do not wait.
    """
    if state.linger:
        if state.across_keys:
            if queue.retries:
                state.batch_due = state.now
            elif not state.ready.count:
                state.batch_due = state.now + state.linger
        elif not (state.draining or queue.retries or len(queue) >= state.max_batch()):
            queue.linger = state.timers.add(state.now + state.linger, _linger_over, queue)
            return
    if state.across_keys:
        state.ready_records += len(queue)
    state.ready.add(queue)


def grow_batch(state: SchedulerState, queue: KeyQueue) -> None:
    """Account for a record added to a queue, where calls are over batches."""
    if queue.stamp:
        state.ready_records += state.across_keys
    elif queue.linger is not None and len(queue) >= state.max_batch():
        stop_lingering(state, queue)


def stop_lingering(state: SchedulerState, queue: KeyQueue) -> None:
    """Make a lingering key ready before its time."""
    assert queue.linger is not None
    state.timers.cancel(queue.linger)
    _linger_over(state, queue)


def _linger_over(state: SchedulerState, queue: KeyQueue) -> None:
    queue.linger = None
    state.ready.add(queue)


def release(state: SchedulerState, queue: KeyQueue) -> None:
    """Make a key ready again, or forget it if it has no records, once no ticket is active."""
    queue.active = 0
    if queue.head is None and not queue.retries:
        del state.queues[queue.key]
    elif not state.stopped:
        if state.batch_size is None:  # the common case, without another function call
            state.ready.add(queue)
        else:
            make_ready(state, queue)
