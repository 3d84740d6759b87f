"""The functions that cases name, as their file defines them."""

from typing import Any


def text(value: Any) -> str:
    """Return a value as Java would print it in a concatenation."""
    return "null" if value is None else str(value)


PREDICATES: dict[str, Any] = {
    "key_mult_2": lambda k, v: k % 2 == 0,
    "key_mult_3": lambda k, v: k % 3 == 0,
    "key_mult_5": lambda k, v: k % 5 == 0,
    "key_mult_7": lambda k, v: k % 7 == 0,
    "key_negative": lambda k, v: k < 0,
    "value_even": lambda k, v: v % 2 == 0,
}


def _null_or_value_value(k: Any, v: Any) -> tuple[Any, Any]:
    return (None, None) if k == "NULL" else (None, v) if k == "null" else (v, v)


PAIRS: dict[str, Any] = {
    "identity": lambda k, v: (k, v),
    "swap": lambda k, v: (v, k),
    "value_value": lambda k, v: (v, v),
    "value_key": lambda k, v: (v, k),
    "null_or_value_value": _null_or_value_value,
    "key_chars": lambda k, v: (k[0], k[1]),
    "int_value": lambda k, v: (k, int(v)),
    "key_index_A": lambda k, v: (ord(k[0]) - ord("A"), v),
}
KEYS: dict[str, Any] = {
    "key": lambda k, v: k,
    "value": lambda k, v: v,
    "value_to_word": lambda k, v: {1: "ONE", 2: "TWO", 3: "THREE"}[v],
    "key_to_word": lambda k, v: {1: "ONE", 2: "TWO", 3: "THREE"}[k],
    "after_comma": lambda k, v: v.split(",")[1] if v is not None and "," in v else None,
    "null": lambda k, v: None,
}
VALUES: dict[str, Any] = {
    "length": lambda k, v: len(v),
    "length_plus_key": lambda k, v: len(v) + k,
    "first_char_minus_48": lambda k, v: ord(v[0]) - 48,
}
FLAT_MAPS: dict[str, Any] = {"repeat_key10": lambda k, v: [(str(k * 10 + i), v) for i in range(k)]}
FLAT_VALUES: dict[str, Any] = {
    "v_and_V": lambda k, v: [f"v{v}", f"V{v}"],
    "v_and_k": lambda k, v: [f"v{v}", f"k{k}"],
}
JOINERS: dict[str, Any] = {
    "dash": lambda a, b: f"{text(a)}-{text(b)}",
    "plus": lambda a, b: f"{text(a)}+{text(b)}",
    "pipe": lambda a, b: f"{text(a)}|{text(b)}",
    "percent": lambda a, b: f"{text(a)}%{text(b)}",
    "paren_comma": lambda a, b: f"({text(a)},{text(b)})",
}
AGGREGATORS: dict[str, Any] = {
    "plus": lambda k, v, agg: f"{text(agg)}+{text(v)}",
    "minus": lambda k, v, agg: f"{text(agg)}-{text(v)}",
    "append": lambda k, v, agg: text(agg) + text(v),
    "remove_all": lambda k, v, agg: agg.replace(v, ""),
    "inc": lambda k, v, agg: agg + 1,
}
REDUCERS: dict[str, Any] = {
    "plus": lambda a, b: f"{text(a)}+{text(b)}",
    "colon": lambda a, b: f"{text(a)}:{text(b)}",
    "sum": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
}
FOREIGN_KEYS: dict[str, Any] = {"split_pipe_1": lambda v: v.split("|")[1]}
