"""One rule for every name that ends up in a path, a topic or a query: Kafka's.

Topics, stores, applications, groups and sinks are all named by users, and their names become
files, SQL values and Kafka topics. One validator for all of them leaves no door open that
another one closes.
"""

import re

from thulawa.core.errors import ConfigurationError

__all__ = ["LONGEST_NAME", "check_name"]

LONGEST_NAME = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_SHOWN = 40


def check_name(name: object, what: str) -> str:
    """Give the name back if it is legal; ``what`` it names goes into the refusal.

    >>> check_name("visits-per-ip", "topic")
    'visits-per-ip'
    >>> check_name("../x", "topic")
    Traceback (most recent call last):
    ...
    thulawa.core.errors.ConfigurationError: topic name '../x' holds '/': use letters a-z A-Z, \
digits, '.', '_' and '-' only
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"a {what} name is a str, not {type(name).__name__}")
    if reason := _objection(name):
        raise ConfigurationError(f"{what} name {_shown(name)} {reason}")
    return name


def _objection(name: str) -> str | None:
    if not name:
        return "is empty: give it at least one character"
    if name in (".", ".."):
        return "means a folder: choose another"
    if len(name) > LONGEST_NAME:
        return f"has {len(name)} characters: use at most {LONGEST_NAME}"
    if not _LEGAL.fullmatch(name):
        odd = _LEGAL.sub("", name)[0]
        return f"holds {odd!r}: use letters a-z A-Z, digits, '.', '_' and '-' only"
    return None


def _shown(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else name[:_SHOWN] + "…")
