"""Addresses as they may be shown: without the user and the password that somebody put in them."""

import re

__all__ = ["MASK", "masked_address"]

MASK = "***"
_LOGIN = re.compile(r"^(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*:/{1,2})?.*@", re.DOTALL)


def masked_address(address: str) -> str:
    """Return an address with all that stands before its last ``@`` masked.

    >>> masked_address("admin:hunter2@localhost:8086")
    '***@localhost:8086'
    >>> masked_address("http://admin:p@ss/word@localhost:8086/db")
    'http://***@localhost:8086/db'
    >>> masked_address("localhost:9092")
    'localhost:9092'
    """
    return _LOGIN.sub(lambda found: f"{found['scheme'] or ''}{MASK}@", address)
