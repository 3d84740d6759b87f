"""The addresses and settings of Kafka's brokers. Settings have the names of librdkafka."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thulawa.core.secrets import MASK, masked_address
from thulawa.errors import ConfigurationError

_SECRETS = (
    "password", "passphrase", "secret", "jaas", "key.pem", "keystore.key", "certificate.pem",
    "token",
)  # fmt: skip
_SCHEME = "kafka://"


@dataclass(frozen=True, slots=True, repr=False)
class Connection:
    """Brokers, and the settings that every client of them needs.

    >>> Connection("localhost:9092", {"sasl.password": "x"})
    Connection('localhost:9092', {'sasl.password': '***'})
    """

    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bootstrap", self.bootstrap.removeprefix(_SCHEME))
        if "@" in self.bootstrap:
            raise ConfigurationError(
                f"{masked_address(self.bootstrap)!r} has a user or a password in it: write "
                'host:port, and give Connection settings "sasl.username" and "sasl.password"'
            )
        for address in self.bootstrap.split(","):
            _, colon, port = address.rpartition(":")
            if not colon or not port.isdecimal():
                raise ConfigurationError(
                    f"{address!r} is not an address of a broker; write localhost:9092"
                )
        if "bootstrap.servers" in self.settings:
            raise ConfigurationError("bootstrap.servers is given by the first argument already")

    @classmethod
    def of(cls, address: "str | Connection | None" = None) -> "Connection":
        """Return the connection for an address, by default that of ``THULAWA_KAFKA``.

        Settings are those of the file that ``THULAWA_KAFKA_SETTINGS`` names, if it names one.
        """
        if isinstance(address, Connection):
            return address
        found = address or os.environ.get("THULAWA_KAFKA")
        if not found:
            raise ConfigurationError(
                "no broker is given: pass host:port, or set THULAWA_KAFKA "
                "(thulawa kafka up starts one on this machine)"
            )
        return cls(found, _settings_in(os.environ.get("THULAWA_KAFKA_SETTINGS")))

    def __repr__(self) -> str:
        masked = {
            name: MASK if any(word in name.lower() for word in _SECRETS) else value
            for name, value in self.settings.items()
        }
        return f"Connection({self.bootstrap!r}{f', {masked}' if masked else ''})"

    def client(self, **more: str | float | bool) -> dict[str, str | float | bool]:
        """Return the settings of a Python client; dots in names are written as underscores."""
        chosen: dict[str, str | float | bool] = {
            "bootstrap.servers": self.bootstrap,
            "log_level": 2,  # what matters is raised; the rest is chatter on stderr
            **self.settings,
        }
        return chosen | {name.replace("_", "."): value for name, value in more.items()}


def _settings_in(path: str | None) -> dict[str, str]:
    """Read a file of settings, ``name=value`` in each line; ``#`` begins a remark."""
    if not path:
        return {}
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise ConfigurationError(f"THULAWA_KAFKA_SETTINGS: {error}") from error
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise ConfigurationError(
                f"{path}, line {number}: write name=value, in librdkafka's names"
            )
        settings[name.strip()] = value.strip()
    return settings
