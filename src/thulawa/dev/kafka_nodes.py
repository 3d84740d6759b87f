"""The nodes of a local broker: their ports, folders and settings."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from thulawa.errors import BrokerFailed

Ports = tuple[int, int, int]
"""Ports of a node: for clients, for clients with a password, for controllers."""

_HOST = "127.0.0.1"
_PER_NODE = 3
_COPIES = 3


@dataclass(slots=True)
class BrokerNode:
    """One process of a broker."""

    number: int
    port: int
    secured_port: int
    controller_port: int
    folder: str
    pid: int = 0

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{_HOST}:{self.port}"

    @property
    def secured_address(self) -> str:
        """The address for clients with a password."""
        return f"{_HOST}:{self.secured_port}"

    @property
    def settings(self) -> str:
        """The file with its settings."""
        return str(Path(self.folder) / "server.properties")

    @property
    def log(self) -> str:
        """The file with the output of its process."""
        return str(Path(self.folder) / "server.log")


def free_ports(first: int, nodes: int) -> list[Ports]:
    """Return the ports of each node: the given client port and two free ones, or all free."""
    wanted = [first + number if first else 0 for number in range(nodes)]
    with ExitStack() as held:
        ports = [
            [_hold(held, port) for port in (client, *([0] * (_PER_NODE - 1)))] for client in wanted
        ]
    return [(one[0], one[1], one[2]) for one in ports]


def _hold(held: ExitStack, port: int) -> int:
    """Bind a port until the stack closes, so that the next free port is another one."""
    listener = held.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
    except OSError as error:
        raise BrokerFailed(f"port {port} is taken; choose another with --port") from error
    return int(listener.getsockname()[1])


def plan(folder: Path, ports: Sequence[Ports]) -> list[BrokerNode]:
    """Return the nodes of a broker whose files are in ``folder``."""
    return [
        BrokerNode(number, *chosen, folder=str(folder / f"node-{number}"))
        for number, chosen in enumerate(ports)
    ]


def properties(node: BrokerNode, nodes: Sequence[BrokerNode], passwords: Mapping[str, str]) -> str:
    """Return a node's settings.

    Internal topics have as many replicas as there are nodes, at most three, and few partitions,
    because all nodes run on one machine. Topics are never created automatically.
    """
    voters = ",".join(f"{one.number}@{_HOST}:{one.controller_port}" for one in nodes)
    copies = min(len(nodes), _COPIES)
    settings = {
        "process.roles": "broker,controller",
        "node.id": node.number,
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{node.address},CONTROLLER://{_HOST}:{node.controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": Path(node.folder) / "data",
        "auto.create.topics.enable": "false",
        # retention uses record timestamps, which are often of 1970 in examples
        "log.retention.ms": -1,
        # a killed node can only rejoin when its old session has ended
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 500,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": max(1, copies - 1),
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": max(1, copies - 1),
        "share.coordinator.state.topic.num.partitions": 1,
        "default.replication.factor": copies,
    }
    if passwords:
        settings["listeners"] = f"{settings['listeners']},SECURED://{node.secured_address}"
        settings["listener.security.protocol.map"] = (
            f"{settings['listener.security.protocol.map']},SECURED:SASL_PLAINTEXT"
        )
        settings["sasl.enabled.mechanisms"] = "PLAIN"
        settings["listener.name.secured.plain.sasl.jaas.config"] = _users(passwords)
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _users(passwords: Mapping[str, str]) -> str:
    users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
