"""Mask user and password in addresses before they are shown."""

import re

MASK = "***"
_LOGIN = re.compile(r"^(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*:/{1,2})?.*@", re.DOTALL)


def masked_address(address: str) -> str:
    """Return an address with everything before its last ``@`` masked.

    >>> masked_address("admin:hunter2@localhost:8086")
    '***@localhost:8086'
    >>> masked_address("http://admin:p@ss/word@localhost:8086/db")
    'http://***@localhost:8086/db'
    >>> masked_address("localhost:9092")
    'localhost:9092'
    """
    return _LOGIN.sub(lambda found: f"{found['scheme'] or ''}{MASK}@", address)
