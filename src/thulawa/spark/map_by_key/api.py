"""``map_by_key`` and ``flat_map_by_key``: the engine over any DataFrame."""

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from typing import Any, TypedDict, Unpack
from uuid import uuid4

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import ParseException, PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from thulawa.core.callers import accepts
from thulawa.engine import (
    Adaptive,
    Batch,
    Bounds,
    Lanes,
    Options,
    Quarantine,
    Rate,
    Retry,
    SingleFlight,
)
from thulawa.engine.options import EmitOrder, OnError, Order, Unkeyed
from thulawa.engine.resources import check_resource
from thulawa.errors import ConfigurationError
from thulawa.runtime.caches import Cache
from thulawa.spark.connectors.task_layout import keeps_record_rows_together, row_positions
from thulawa.spark.internals import arrow_schema, has_active_context, spark_type
from thulawa.spark.map_by_key.dead_letters import POSITION, UNKNOWN, RowIdentity, dead_letter_topic
from thulawa.spark.map_by_key.lane_report import LaneReport
from thulawa.spark.map_by_key.operator import ERROR_COLUMN, ERROR_TYPE, Operator
from thulawa.spark.map_by_key.order_guard import check_order, check_speculation, title_of
from thulawa.spark.map_by_key.worker import process
from thulawa.spark.session.shipping import ship
from thulawa.spark.session.worker_pools import dedicated_workers

_POSITION_TYPES = (t.StringType(), t.IntegerType(), t.LongType())
_NO_KEYS = (t.ArrayType, t.MapType, t.StructType, t.VariantType)
_TIMES = (t.IntegralType, t.TimestampType, t.TimestampNTZType)


class MapByKeyOptions(TypedDict, total=False):
    """Options of one operator, as keyword arguments of `map_by_key`; all have defaults."""

    # of the engine (see `thulawa.engine.Options`)
    order: Order
    emit: EmitOrder
    unkeyed: Unkeyed
    in_flight: int
    adaptive: Adaptive
    bounds: Bounds
    lanes: Lanes
    retry: Retry
    timeout: float
    deadline: float
    on_error: OnError
    quarantine: Quarantine
    batch: Batch
    rate: Rate
    resource_timeout: float

    # the name of the operator in errors and metrics; by default that of the function
    name: str
    # opened once per worker, passed to the function as its second argument, closed when idle
    resource: Callable[[], AbstractAsyncContextManager[Any]]
    # calls with equal cache keys share a result
    cache: Cache
    # the column whose value decides which key is processed first
    timestamp: str
    # a column, or a function of the row, that gives the name or the position of the row's lane
    lane: str | Callable[[Any], str | int]
    # shuffles all rows of a key into one partition, in the order of ``order_by``
    repartition: bool
    order_by: str | list[str]
    # the topic for ``on_error="dead_letter"``, such as ``file:./topics#visits-dead``
    dead_letters: str
    # collects lane statistics
    report: LaneReport


def map_by_key(
    function: Callable[..., Any],
    *,
    key: str | Sequence[str] | None,
    returns: str | t.StructType,
    keep: Sequence[str] = (),
    **options: Unpack[MapByKeyOptions],
) -> Callable[[DataFrame], DataFrame]:
    """Call a function for every row, many keys of a partition at once, each key in order.

    Use it with ``DataFrame.transform``, batch or streaming. ``function`` takes one row (columns
    are attributes) and returns a row, a dict, a tuple, the bare value if one column is declared,
    or None for nulls. A coroutine function runs on the worker's event loop, a plain one on
    threads. ``returns`` declares the columns it adds, as DDL or as a schema; ``keep`` names the
    input columns of the output. The other options are those of `MapByKeyOptions`.

    .. versionadded:: 0.1.0
    """
    return _Mapping(function, key, returns, keep, options, flat=False)


def flat_map_by_key(
    function: Callable[..., Any],
    *,
    key: str | Sequence[str] | None,
    returns: str | t.StructType,
    keep: Sequence[str] = (),
    **options: Unpack[MapByKeyOptions],
) -> Callable[[DataFrame], DataFrame]:
    """Call a function as `map_by_key` does; it returns a list of rows: none, one or many.

    .. versionadded:: 0.1.0
    """
    return _Mapping(function, key, returns, keep, options, flat=True)


class _Mapping:
    """The function that `DataFrame.transform` calls."""

    def __init__(
        self,
        function: Callable[..., Any],
        key: str | Sequence[str] | None,
        returns: str | t.StructType,
        keep: Sequence[str],
        given: MapByKeyOptions,
        *,
        flat: bool,
    ) -> None:
        self._function = function
        self._name: str = given.get("name", getattr(function, "__qualname__", "map_by_key"))
        self._given = given
        if not callable(function):
            raise ConfigurationError(f"{function!r} is not a function")
        self._check_names()
        self._keys = (key,) if isinstance(key, str) else self._columns("key", key or ())
        self._returns = returns
        self._keep = self._columns("keep", keep)
        self._flat = flat
        self._options = self._engine_options()
        by = given.get("order_by", ())
        self._order_by = (by,) if isinstance(by, str) else self._columns("order_by", by)
        self._identity = uuid4().hex
        self._check()
        self._check_functions()
        if has_active_context() or not isinstance(returns, str):
            self._declared()  # without a session DDL cannot be parsed yet

    def _check_names(self) -> None:
        """Raise `ConfigurationError` for an option that does not exist, with the closest name."""
        known = [*MapByKeyOptions.__annotations__, "key", "returns", "keep"]
        for unknown in set(self._given) - set(known):
            close = get_close_matches(unknown, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {sorted(known)}"
            raise self._error(f"there is no option {unknown!r}; {hint}")

    def _engine_options(self) -> Options:
        names = {one.name for one in fields(Options)} - {"name"}
        chosen: dict[str, Any] = {n: value for n, value in self._given.items() if n in names}
        if (cache := self._given.get("cache")) is not None:
            chosen["single_flight"] = SingleFlight(by=cache.cache_key)
        return Options(name=self._name, **chosen)

    def __call__(self, df: DataFrame) -> DataFrame:
        ship(df.sparkSession)
        operator = self._operator(df)
        self._check_picklable(operator)
        check_speculation(df, operator)
        if self._given.get("repartition"):
            if df.isStreaming:
                raise self._error(
                    "repartition=True needs a batch: Spark sorts no stream; call map_by_key inside "
                    "foreachBatch"
                )
            df = df.repartition(*self._keys).sortWithinPartitions(*self._order_by)
        else:
            check_order(df, operator)
        function = partial(process, operator)
        function.__name__ = title_of(operator)  # type: ignore[attr-defined] # Spark looks for it
        with dedicated_workers(df.sparkSession, "map_by_key"):
            return df.mapInArrow(function, self._schema(df, operator))

    def _columns(self, option: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return names of columns; raise `ConfigurationError` for anything else."""
        if isinstance(names, str):
            raise self._error(f"{option} is a list of columns: write {option}=[{names!r}]")
        if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
            raise self._error(
                f"{option} takes names of columns, not {names!r:.60}; add a computed column "
                "with withColumn() first, and name it here"
            )
        return tuple(names)

    def _check(self) -> None:
        if (self._options.on_error == "dead_letter") != ("dead_letters" in self._given):
            raise self._error(
                "on_error='dead_letter' and dead_letters= go together; name the topic for failed "
                "rows, such as dead_letters='file:./topics#visits-dead'"
            )
        if self._given.get("repartition") and not (self._keys and self._order_by):
            raise self._error(
                "repartition=True needs a key and order_by: a shuffle loses the order"
            )
        if ("lane" in self._given) != ("lanes" in self._given):
            raise self._error("lanes= and lane= go together: the lanes, and which one a row is of")
        if "report" in self._given and "lanes" not in self._given:
            raise self._error("report= collects lane statistics: it goes with lanes= and lane=")
        if self._order_by and not self._given.get("repartition"):
            raise self._error("order_by goes with repartition=True")
        if self._options.order == "key" and not self._keys and self._options.unkeyed == "ordered":
            raise self._error(
                "key=None means one call at a time; choose order='none' or unkeyed='parallel'"
            )

    def _check_functions(self) -> None:
        arguments = ["the row" if self._options.batch is None else "a list of rows"]
        resource = self._given.get("resource")
        if resource is not None:
            check_resource(resource, self._name)
            arguments.append("the resource")
        if accepts(self._function, len(arguments)):
            return
        hint = ""
        if resource is None and accepts(self._function, 2):
            hint = "; its second argument is opened with resource="
        raise self._error(
            f"the function is called with {' and '.join(arguments)}, and this one takes "
            f"{inspect.signature(self._function)}{hint}"
        )

    def _operator(self, df: DataFrame) -> Operator:
        named = [*self._keys, *self._keep, *self._order_by]
        chosen = (self._given.get("timestamp"), self._given.get("lane"))
        named += [name for name in chosen if isinstance(name, str)]
        missing = [name for name in named if name not in df.columns]
        if missing:
            raise self._error(f"no column {missing} in the input, which has {df.columns}")
        if unclear := [name for name in dict.fromkeys(named) if df.columns.count(name) > 1]:
            raise self._error(
                f"the input has several columns {unclear}: drop or rename all but one of each"
            )
        self._check_types(df.schema)
        letters = self._given.get("dead_letters")
        declared = {one.name for one in fields(Operator)} - {"name", "dead_letters"}
        for_workers: Any = {n: value for n, value in self._given.items() if n in declared}
        return Operator(
            name=self._name,
            function=self._function,
            flat=self._flat,
            keys=self._keys,
            returns=self._arrow_schema(df.sparkSession),
            keep=self._keep,
            options=self._options,
            dead_letters=None if letters is None else dead_letter_topic(letters),
            row_identity=UNKNOWN if letters is None else self._row_identity(df),
            identity=self._identity,
            **for_workers,
        )

    def _row_identity(self, df: DataFrame) -> RowIdentity:
        """Return what identifies a row in dead letters; raise for a stream without identity."""
        kinds = {field.name: field.dataType for field in df.schema}
        has_position = tuple(map(kinds.get, POSITION)) == _POSITION_TYPES
        if has_position and keeps_record_rows_together(df):
            return RowIdentity("record")
        if not df.isStreaming:  # a batch is computed once; foreachBatch is detected in the task
            return UNKNOWN
        if (layout := row_positions(df)) is not None:
            return RowIdentity("position", layout)
        raise self._error(
            "rows may be in other tasks when a micro-batch is run again, so that dead letters "
            "would hide others; keep the columns topic, partition and offset of one source, one "
            "row for each record, or use on_error='column' and write the failed rows yourself"
        )

    def _check_types(self, schema: t.StructType) -> None:
        for name in self._keys:
            if isinstance(kind := schema[name].dataType, _NO_KEYS):
                raise self._error(
                    f"column {name!r} is of type {kind.simpleString()}, which cannot be a key; "
                    "name a column of strings, numbers, dates or bytes, or several of them"
                )
        time = self._given.get("timestamp")
        if time is not None and not isinstance(kind := schema[time].dataType, _TIMES):
            raise self._error(
                f"timestamp={time!r} is of type {kind.simpleString()}; name a column of timestamps "
                "or whole numbers"
            )

    def _check_picklable(self, operator: Operator) -> None:
        """Raise at the user's line, rather than when the query starts."""
        try:
            cloudpickle.dumps(operator)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise self._error(
                f"the function or what it refers to cannot be pickled ({error}); open such "
                "objects on the worker, with resource="
            ) from error

    def _declared(self) -> t.StructType:
        returns: object = self._returns
        if isinstance(returns, str):
            try:
                returns = t.StructType.fromDDL(returns)
            except ParseException as error:
                reason = str(error).strip().splitlines()[0]
                raise self._error(
                    f"returns={returns!r} is not a schema: {reason}; "
                    "write names and types, as in 'country string, code int'"
                ) from error
        if not isinstance(returns, t.StructType):
            raise self._error(
                f"returns={self._returns!r:.60} names no columns: 'country string' does"
            )
        names = Counter([*self._keep, *returns.names])
        if self._options.on_error == "column":
            names[ERROR_COLUMN] += 1
        if twice := [name for name, times in names.items() if times > 1]:
            raise self._error(
                f"columns {twice} would be in the output more than once, by keep, by returns or by "
                "on_error='column'; rename or leave out one"
            )
        if not names:
            raise self._error("returns and keep name no column: the output would be empty")
        return returns

    def _arrow_schema(self, spark: SparkSession) -> pa.Schema:
        zone = spark.conf.get("spark.sql.session.timeZone")
        try:
            return arrow_schema(self._declared(), zone)
        except PySparkTypeError as error:
            raise self._error(f"returns={self._returns!r:.60}: {error}") from error

    def _schema(self, df: DataFrame, operator: Operator) -> t.StructType:
        columns = [df.schema[name] for name in operator.keep]
        # a failed row has no results, so declared columns are nullable
        columns += [t.StructField(one.name, one.dataType) for one in self._declared()]
        if operator.options.on_error == "column":
            columns.append(t.StructField(ERROR_COLUMN, spark_type(ERROR_TYPE)))
        return t.StructType(columns)

    def _error(self, reason: str) -> ConfigurationError:
        return ConfigurationError(f"{self._name}: {reason}")
