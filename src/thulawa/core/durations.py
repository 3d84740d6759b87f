"""Durations: texts such as "5 minutes", timedeltas or numbers, converted to milliseconds."""

import re
from datetime import timedelta
from typing import TypeAlias

from thulawa.errors import ConfigurationError

Duration: TypeAlias = int | str | timedelta

_UNITS = {
    **dict.fromkeys(("ms", "milli", "millisecond"), 1),
    **dict.fromkeys(("s", "sec", "second"), 1_000),
    **dict.fromkeys(("m", "min", "minute"), 60_000),
    **dict.fromkeys(("h", "hour"), 3_600_000),
    **dict.fromkeys(("d", "day"), 86_400_000),
    "week": 604_800_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*,?\s*")
_LONGEST = 2**63 - 1


def milliseconds(duration: Duration, *, name: str = "duration") -> int:
    """Return a duration in milliseconds; a plain number is in milliseconds already.

    >>> milliseconds("1 minute"), milliseconds("1h 30min"), milliseconds(250)
    (60000, 5400000, 250)
    >>> milliseconds(timedelta(seconds=2))
    2000
    """
    if isinstance(duration, timedelta):
        amount = duration // timedelta(milliseconds=1)
    elif isinstance(duration, str):
        amount = _parsed(duration, name)
    elif type(duration) is int:
        amount = duration
    else:
        raise ConfigurationError(
            f"{name}: {duration!r} is not a duration; "
            "use milliseconds, a timedelta or a text such as '5 minutes'"
        )
    if not 0 <= amount <= _LONGEST:
        raise ConfigurationError(f"{name} must be between 0 and 2**63 - 1 ms, not {amount}")
    return amount


def _parsed(text: str, name: str) -> int:
    rest = text.strip().lower()
    total = 0.0
    while rest:
        part = _PART.match(rest)
        unit = part and _UNITS.get(part[2], _UNITS.get(part[2].removesuffix("s")))
        if not part or not unit:
            raise ConfigurationError(
                f"{name}: {text!r} is not a duration; "
                "write it as '5 minutes', '1h 30min' or '250 ms'"
            )
        total += float(part[1]) * unit
        rest = rest[part.end() :]
    if not text.strip():
        raise ConfigurationError(f"{name} must not be empty")
    return round(total)
