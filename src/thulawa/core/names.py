"""One rule for every name that becomes a path, a topic or part of a query: Kafka's.

Users name topics, stores, applications, groups and sinks, and the names become files, SQL values
and Kafka topics. All of them are checked here.
"""

import re

from thulawa.errors import ConfigurationError

LONGEST_NAME = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_SHOWN = 40


def check_name(name: object, what: str) -> str:
    """Return the name; raise `ConfigurationError`, which mentions ``what``, if it is illegal.

    >>> check_name("visits-per-ip", "topic")
    'visits-per-ip'
    >>> check_name("../x", "topic")
    Traceback (most recent call last):
    ...
    thulawa.errors.ConfigurationError: topic name '../x' holds '/': use letters a-z A-Z, \
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
