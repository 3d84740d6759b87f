"""Build Arrow batches from outcomes: results, kept columns, errors."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from thulawa.engine import Outcome
from thulawa.errors import RecordError, WrongResult, message_of
from thulawa.spark.map_by_key.dead_letters import DeadLetters
from thulawa.spark.map_by_key.operator import ERROR_COLUMN, ERROR_TYPE, Operator
from thulawa.spark.map_by_key.rows import LazyBatch, Results

_ROWS = 10_000
MISFITS = (pa.ArrowException, WrongResult, TypeError, ValueError, OverflowError)


class ArrowOutput:
    """Builds the output of an operator."""

    def __init__(self, operator: Operator, dead_letters: DeadLetters | None) -> None:
        self._operator = operator
        self._dead_letters = dead_letters
        self._results = Results(operator.returns)
        self._with_errors = operator.options.on_error == "column"

    def batches(self, passed: Iterable[list[Outcome]]) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of many outcomes each."""
        waiting: list[Outcome] = []
        for outcomes in passed:
            waiting += outcomes
            if len(waiting) >= _ROWS:
                yield from self._batch(waiting)
                waiting = []
        if waiting:
            yield from self._batch(waiting)
        if self._dead_letters is not None:
            self._dead_letters.flush()

    def _batch(self, outcomes: list[Outcome]) -> Iterator[pa.RecordBatch]:
        if self._dead_letters is not None:
            outcomes = self._without_failures(outcomes, self._dead_letters)
        try:
            rows, columns = self._columns(outcomes)
        except MISFITS:
            rows, columns = self._columns(self._without_misfits(outcomes))
        if not rows:
            return
        names = [*self._operator.keep, *self._operator.returns.names]
        columns = [*self._kept(rows), *columns]
        if self._with_errors:
            names.append(ERROR_COLUMN)
            columns.append(pa.array([_described(one) for one in rows], type=ERROR_TYPE))
        yield pa.RecordBatch.from_arrays(columns, names)

    def _columns(self, outcomes: list[Outcome]) -> tuple[list[Outcome], list[pa.Array]]:
        """Return one outcome per output row, and the result columns."""
        if self._operator.flat:
            outcomes = [one for outcome in outcomes for one in _spread(outcome)]
        return outcomes, self._results.columns([outcome.result for outcome in outcomes])

    def _kept(self, outcomes: list[Outcome]) -> list[pa.Array]:
        """Return the kept columns, copied by position from the Arrow input."""
        keep = list(self._operator.keep)
        if not keep:
            return []
        rows = [outcome.record.value for outcome in outcomes]
        starts: dict[LazyBatch, int] = dict.fromkeys([row._batch for row in rows], 0)  # noqa: SLF001
        start = 0
        for batch in starts:
            starts[batch] = start
            start += batch.arrow.num_rows
        indexes = [starts[row._batch] + row._index for row in rows]  # noqa: SLF001 its own layer
        table = pa.Table.from_batches([batch.arrow.select(keep) for batch in starts])
        taken = table.take(pa.array(indexes, type=pa.int64()))
        return [column.combine_chunks() for column in taken.columns]

    def _without_failures(self, outcomes: list[Outcome], dead: DeadLetters) -> list[Outcome]:
        for outcome in outcomes:
            if outcome.error is not None:
                dead.add(outcome)
        return [outcome for outcome in outcomes if outcome.error is None]

    def _without_misfits(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Apply the error policy to results that do not fit the declared types."""
        kept = []
        for outcome in outcomes:
            try:
                self._columns([outcome])
                kept.append(outcome)
            except MISFITS as error:
                wrong = self._wrong(outcome, error)
                if self._operator.options.on_error == "fail":
                    raise wrong from error
                failed = Outcome(outcome.record, None, wrong, outcome.attempts)
                if self._operator.options.on_error == "column":
                    kept.append(failed)
                elif self._dead_letters is not None:
                    self._dead_letters.add(failed)
        return kept

    def _wrong(self, outcome: Outcome, error: Exception) -> RecordError:
        returns = ", ".join(f"{field.name} {field.type}" for field in self._operator.returns)
        why = error.args[0] if error.args else error
        wrong = WrongResult(
            f"the result does not fit the declared columns ({returns}): {why}",
            node=self._operator.name,
            offset=outcome.record.offset,
            key=outcome.record.key,
        )
        wrong.record = outcome.record
        return wrong


def _spread(outcome: Outcome) -> list[Outcome]:
    if outcome.error is not None:
        return [outcome]
    results: list[Any] = outcome.result
    return [Outcome(outcome.record, result, None, outcome.attempts) for result in results]


def _described(outcome: Outcome) -> dict[str, Any] | None:
    error = outcome.error
    if error is None:
        return None
    return {
        "type": type(error).__name__,
        "message": message_of(error),
        "offset": outcome.record.offset,
        "attempts": outcome.attempts,
    }
