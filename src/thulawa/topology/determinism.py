"""Decide whether a function returns the same when a batch runs again.

A failed batch runs again. If a function that determines the task of a record returns something else
the second time, the record ends up in two tasks or in none, because some tasks may have committed
the results of the first attempt. A repartition behind such a function must be durable
(`runtime.planning`). These functions are known to be deterministic:

- those that the user has declared `deterministic`;
- functions of `operator`, and the builtins whose result depends on their arguments alone;
- plain Python functions that call only such functions and methods of plain data, and use no other
  values: no captured variable, no default argument, no global but a function. A captured value
  may differ after a restart (`started = time.time()`).

All others are unknown. The byte code is checked against a list of allowed instructions, so that a
new instruction of a newer Python makes a function unknown, never wrongly known.
"""

import builtins
import dis
import functools
import json
import math
import operator
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import pairwise
from typing import Any, TypeVar

from thulawa.topology.nodes import AsyncCall, Node

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__thulawa_deterministic__"
_DATA = (str, bytes, int, float, bool, dict, list, tuple)
_METHODS = frozenset(name for kind in _DATA for name in dir(kind) if not name.startswith("_"))
# not hash, id and repr, which differ between processes, nor sets, whose order does
_KNOWN: frozenset[Any] = frozenset(
    (*_DATA, abs, all, any, chr, divmod, enumerate, filter, isinstance, len, map, max, min, ord)
) | {pow, range, reversed, round, slice, sorted, sum, zip, json.dumps, json.loads}
_MODULES = (math, operator, json)
_OPERATORS = (operator.itemgetter, operator.attrgetter)

_ALLOWED = frozenset(
    """
    BINARY_OP BINARY_SLICE BINARY_SUBSCR BUILD_CONST_KEY_MAP BUILD_LIST BUILD_MAP BUILD_SLICE
    BUILD_STRING BUILD_TUPLE CACHE CALL CALL_FUNCTION_EX CALL_KW CHECK_EXC_MATCH COMPARE_OP
    CONTAINS_OP CONVERT_VALUE COPY COPY_FREE_VARS DELETE_FAST DELETE_SUBSCR DICT_MERGE DICT_UPDATE
    END_FOR EXTENDED_ARG FORMAT_SIMPLE FORMAT_VALUE FORMAT_WITH_SPEC FOR_ITER GET_ITER GET_LEN
    IS_OP JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD JUMP_IF_FALSE_OR_POP
    JUMP_IF_TRUE_OR_POP KW_NAMES LIST_APPEND LIST_EXTEND LIST_TO_TUPLE LOAD_CLOSURE LOAD_CONST
    LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_FAST_BORROW LOAD_FAST_BORROW_LOAD_FAST_BORROW
    LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST LOAD_SMALL_INT MAKE_CELL MAKE_FUNCTION MAP_ADD MATCH_KEYS
    MATCH_MAPPING MATCH_SEQUENCE NOP NOT_TAKEN POP_EXCEPT POP_ITER POP_JUMP_BACKWARD_IF_FALSE
    POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_TRUE
    POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE
    POP_JUMP_FORWARD_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    POP_JUMP_IF_TRUE POP_TOP PRECALL PUSH_EXC_INFO PUSH_NULL RAISE_VARARGS RERAISE RESUME
    RETURN_CONST RETURN_GENERATOR RETURN_VALUE SET_FUNCTION_ATTRIBUTE STORE_FAST
    STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST STORE_SUBSCR SWAP TO_BOOL UNARY_INVERT
    UNARY_NEGATIVE UNARY_NOT UNARY_POSITIVE UNPACK_EX UNPACK_SEQUENCE YIELD_VALUE
    """.split()  # noqa: SIM905 more readable than a list
)


def deterministic(function: F) -> F:
    """Declare that a function, or a processor class, is deterministic.

    Its results must depend on its arguments alone, and for a processor on its stores: not on a
    service, a clock, a random number or a variable that changes. Repartitions behind functions
    that are not known to be deterministic are topics, which costs one more batch.

    >>> @deterministic
    ... def country_of(key, visit):
    ...     return PREFIXES.get(visit["ip"].split(".")[0], "??")
    >>> deterministic(country_of) is country_of
    True
    """
    try:
        setattr(function, _MARK, id(function))  # `functools.wraps` copies it to others
    except (AttributeError, TypeError):  # a builtin, or a bound method

        @functools.wraps(function)
        def wrapped(*args: Any, **named: Any) -> Any:
            return function(*args, **named)

        setattr(wrapped, _MARK, id(wrapped))
        return wrapped  # type: ignore[return-value] # same signature
    return function


def node_nondeterminism(node: Node) -> str | None:
    """Return why a node's results may differ when a batch runs again; None if they do not."""
    if isinstance(node, AsyncCall):
        if not node.deterministic:
            return "it is async and not declared with deterministic=True"
        if node.options.emit != "partition":
            return 'it emits results in the order they finish: emit="partition" keeps their order'
        return None
    reasons = (nondeterminism_of(function) for function in _functions(node))
    return next((reason for reason in reasons if reason is not None), None)


def nondeterminism_of(function: object) -> str | None:
    """Return why a function is not known to be deterministic; None if it is.

    >>> nondeterminism_of(lambda key, value: value["page"].lower()) is None
    True
    >>> nondeterminism_of(lambda key, value: print(value))
    '<lambda> calls print, which is not declared deterministic'
    """
    reason = _CodeCheck().reason(function)
    return None if reason is None else f"{_name(function)} {reason}"


def _functions(node: Node) -> Iterator[object]:
    for field in fields(node):
        value = getattr(node, field.name)
        for one in value if isinstance(value, tuple) else (value,):
            if callable(one):
                yield one


class _CodeCheck:
    """The check of one function and of those it calls."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()  # ids of code and globals

    def reason(self, function: Any) -> str | None:
        marked = getattr(function, "__dict__", {}).get(_MARK)
        if marked == id(function) or _is_known(function):
            return None
        if not isinstance(function, types.FunctionType):
            return "is not declared deterministic"
        if function.__defaults__ or function.__kwdefaults__:
            return "has default arguments"
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for variable, cell in cells:
            if not _holds_function(cell):
                return f"captures {variable}"
            reason = self.reason(cell.cell_contents)
            if reason is not None:
                return f"calls {_name(cell.cell_contents)}, which {reason}"
        return self._code(function.__code__, function.__globals__)

    def _code(self, code: types.CodeType, names: dict[str, Any]) -> str | None:
        if (id(code), id(names)) in self._seen:
            return None
        self._seen.add((id(code), id(names)))
        owner: Any = None  # the global whose attribute the next instruction may load
        for step in dis.get_instructions(code):
            reason: str | None = None
            if step.opname in ("CACHE", "PUSH_NULL", "EXTENDED_ARG"):
                continue
            owner, before = None, owner
            if before is not None and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                reason = _attribute_of(before, step)
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                owner = names.get(step.argval, getattr(builtins, step.argval, None))
                if not any(owner is module for module in _MODULES):
                    reason = self._global(step.argval, owner)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                reason = _attribute(step)
            elif step.opname not in _ALLOWED and not _is_local_cell(step, code):
                reason = f"uses an unknown instruction ({step.opname})"
            if reason is not None:
                return reason
        inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
        reasons = (_reason_of_sets(code), *(self._code(one, names) for one in inner))
        return next((reason for reason in reasons if reason is not None), None)

    def _global(self, name: str, found: Any) -> str | None:
        if not callable(found):
            return f"uses the variable {name}"
        if isinstance(found, type) and issubclass(found, Exception):
            return None if found.__module__ == "builtins" else f"uses the exception {name}"
        reason = self.reason(found)
        return None if reason is None else f"calls {name}, which {reason}"


def _reason_of_sets(code: types.CodeType) -> str | None:
    """Return what is wrong with constant sets: only what they contain may be asked."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    for step, following in pairwise(steps):
        if isinstance(step.argval, frozenset) and following.opname != "CONTAINS_OP":
            return "uses a set, whose order may differ"
    return None


def _name(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return str(name or type(function).__qualname__).rpartition("<locals>.")[2]


def _is_known(function: Any) -> bool:
    if isinstance(function, types.MethodDescriptorType):
        return function.__objclass__ in _DATA and function.__name__ in _METHODS
    if isinstance(function, types.BuiltinFunctionType) and function.__module__ in (
        "_operator",
        "math",
    ):
        return True
    if isinstance(function, operator.methodcaller):
        return function.__reduce__()[1][0] in _METHODS
    if isinstance(function, _OPERATORS):
        return True
    try:
        return function in _KNOWN
    except TypeError:  # not hashable
        return False


def _holds_function(cell: types.CellType) -> bool:
    try:
        return callable(cell.cell_contents)
    except ValueError:  # empty so far
        return False


def _attribute_of(owner: Any, step: dis.Instruction) -> str | None:
    """Return why an attribute of a global is not allowed: it is not a known function."""
    name = str(step.argval)
    return None if _is_known(getattr(owner, name, None)) else f"uses {_name(owner)}.{name}"


def _attribute(step: dis.Instruction) -> str | None:
    """Return why an attribute of a value is not allowed: it is private, or an unknown method."""
    name = str(step.argval)
    called = step.opname == "LOAD_METHOD" or (
        sys.version_info >= (3, 12) and bool((step.arg or 0) & 1)
    )
    if name.startswith("_") or (called and name not in _METHODS):
        return f"calls .{name}"
    return None


def _is_local_cell(step: dis.Instruction, code: types.CodeType) -> bool:
    """Return whether an instruction uses a variable shared with a nested function."""
    return step.opname in ("LOAD_DEREF", "STORE_DEREF") and step.argval in (
        *code.co_cellvars,
        *code.co_freevars,
    )
