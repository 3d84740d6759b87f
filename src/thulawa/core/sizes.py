"""Sizes: texts such as "256 MB" or numbers, converted to bytes."""

import re

from thulawa.errors import ConfigurationError

_UNITS = {"B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS |= {f"{_letter}B": 1_000**_power, f"{_letter}IB": 1_024**_power}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Z]+)")


def byte_size(size: int | str, *, name: str = "size") -> int:
    """Return a size in bytes; a plain number is in bytes already.

    >>> byte_size("256 MB"), byte_size("1.5 GiB"), byte_size(4096)
    (256000000, 1610612736, 4096)
    """
    if type(size) is int and size > 0:
        return size
    found = _SIZE.fullmatch(size.strip().upper()) if isinstance(size, str) else None
    unit = found and _UNITS.get(found[2])
    if not found or not unit or not float(found[1]):
        raise ConfigurationError(
            f"{name}: {size!r} is not a size; use bytes, or a text such as '256 MB' or '1 GiB'"
        )
    return round(float(found[1]) * unit)
