"""A Kafka broker for development and tests: Apache Kafka in KRaft mode, on loopback.

::

    from thulawa.dev.kafka_broker import DevBroker

    with DevBroker("tests", port=0) as broker:  # port 0: any free port
        print(broker.bootstrap)

A broker is a folder in the cache with its settings, its data, the output of its processes and
``state.json`` with their ids. So any process can find it, stop it and start it again. Each node is
both broker and controller.
"""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import reachable
from thulawa.dev.maven import cache_folder, jars
from thulawa.errors import BrokerError, BrokerFailed, ConfigurationError, ToolMissing

_STATE = "state.json"
_FORMATTED = "formatted"
_TIMEOUT = 150.0  # seconds; on a loaded machine a JVM needs more than a minute
_HEAP = ("-Xms256m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_SHOWN = 1_500
_HOST = "127.0.0.1"
_MAX_REPLICAS = 3

# processes that this one has started and must reap; they outlive the object that started them
_children: dict[int, subprocess.Popen[bytes]] = {}


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


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a broker: its addresses, nodes and running nodes."""

    name: str
    bootstrap: str
    nodes: int
    running: int
    pids: tuple[int, ...]
    folder: str


class DevBroker:
    """One broker, or several that form a cluster, by name."""

    def __init__(
        self,
        name: str = "default",
        *,
        port: int = 9092,
        brokers: int = 1,
        passwords: Mapping[str, str] | None = None,
    ) -> None:
        """Describe a broker; `up` starts it.

        ``port`` is that of the first node (0: any); the other nodes have the following ones. With
        ``passwords`` there is a second listener (`secured`) that requires one of these users.
        """
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigurationError(f"{name!r}: a name has letters, digits, - and _")
        if brokers < 1:
            raise ConfigurationError(f"brokers must be at least 1, not {brokers}")
        self.name = name
        self.folder = cache_folder() / "kafka" / name
        self._wanted = (port, brokers, dict(passwords or {}))
        self._nodes = self._read()

    @property
    def bootstrap(self) -> str:
        """The bootstrap addresses."""
        return ",".join(node.address for node in self._nodes)

    @property
    def connection(self) -> Connection:
        """A connection to the broker."""
        return Connection(self.bootstrap)

    def secured(self, user: str, password: str) -> Connection:
        """Return a connection to the listener with SASL PLAIN authentication."""
        return Connection(
            ",".join(node.secured_address for node in self._nodes),
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": password,
            },
        )

    def up(self) -> Self:
        """Start the nodes that are not running, and wait until the broker answers."""
        if not self._nodes:
            self._make()
        if self.status().running < len(self._nodes):
            java = _java()
            classpath = os.pathsep.join(str(jar) for jar in jars("broker"))
            self._format(java, classpath)
            for node in self._nodes:
                if not _runs(node):
                    self._start(node, java, classpath)
            self._write()
        self._await()
        return self

    def down(self, *, remove: bool = False) -> None:
        """Stop it cleanly; with ``remove``, delete its data and logs."""
        for node in self._nodes:
            _signal(node, signal.SIGTERM)
        deadline = time.monotonic() + _TIMEOUT
        for node in self._nodes:
            while _runs(node) and time.monotonic() < deadline:
                time.sleep(0.05)
            _signal(node, signal.SIGKILL)
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, node: int = 0) -> None:
        """Kill one node (SIGKILL); `up` starts it again."""
        victim = self._nodes[node]
        _signal(victim, signal.SIGKILL)
        while _runs(victim):
            time.sleep(0.01)

    def status(self) -> Status:
        """Return the state of the broker."""
        pids = tuple(node.pid for node in self._nodes if _runs(node))
        return Status(
            self.name, self.bootstrap, len(self._nodes), len(pids), pids, str(self.folder)
        )

    def __enter__(self) -> Self:
        try:
            return self.up()
        except BaseException:
            self.down()
            raise

    def __exit__(self, *_: object) -> None:
        self.down(remove=True)

    def _make(self) -> None:
        first, brokers, passwords = self._wanted
        self._nodes = [
            BrokerNode(number, port, secured, controller, str(self.folder / f"node-{number}"))
            for number, (port, secured, controller) in enumerate(_free_ports(first, brokers))
        ]
        for node in self._nodes:
            Path(node.folder).mkdir(parents=True, exist_ok=True)
            settings = Path(node.settings)
            settings.touch(mode=0o600)
            settings.write_text(_properties(node, self._nodes, passwords), encoding="utf-8")
        self._write()

    def _format(self, java: str, classpath: str) -> None:
        for node in self._nodes:
            done = Path(node.folder) / _FORMATTED
            if done.exists():
                continue
            run = subprocess.run(  # noqa: S603 the java of this machine, over jars we fetched
                [java, "-XX:TieredStopAtLevel=1", "-cp", classpath, "kafka.tools.StorageTool",
                 "format", "--ignore-formatted", "-t", "Y2x1c3Rlci10aHVsYXdhMA",
                 "-c", node.settings],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if run.returncode:
                said = (run.stderr or run.stdout)[-_SHOWN:]
                raise BrokerFailed(f"formatting {node.folder}: {said}")
            done.touch()

    def _start(self, node: BrokerNode, java: str, classpath: str) -> None:
        own = shlex.split(os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", ""))  # as Kafka's scripts
        with Path(node.log).open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 as above
                [java, *_HEAP, *own, f"-Dthulawa.broker={node.folder}", "-cp", classpath,
                 "kafka.Kafka", node.settings],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        node.pid = child.pid
        _children[child.pid] = child

    def _await(self) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while True:
            if (status := self.status()).running < status.nodes:
                ended = next(node for node in self._nodes if not _runs(node))
                said = Path(ended.log).read_text(encoding="utf-8", errors="replace")[-_SHOWN:]
                raise BrokerFailed(
                    f"the broker on port {ended.port} ended; {ended.log} ends so:\n{said}"
                )
            try:
                reachable(self.connection, timeout=5, brokers=len(self._nodes))
            except BrokerError as error:
                if time.monotonic() > deadline:
                    raise BrokerFailed(f"no answer after {_TIMEOUT:.0f} s: {error}") from error
                time.sleep(0.1)
            else:
                return

    def _read(self) -> list[BrokerNode]:
        try:
            rows = json.loads((self.folder / _STATE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        return [BrokerNode(**row) for row in rows]

    def _write(self) -> None:
        text = json.dumps([asdict(node) for node in self._nodes], indent=2)
        fresh = self.folder / f".{_STATE}"
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self.folder / _STATE)


def brokers() -> list[DevBroker]:
    """Return every broker that was created on this machine and not removed."""
    return [
        DevBroker(state.parent.name) for state in sorted(cache_folder().glob(f"kafka/*/{_STATE}"))
    ]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        raise ToolMissing("java (17 or newer) is not installed; it runs the broker")
    return found


def _signal(node: BrokerNode, what: signal.Signals) -> None:
    if _runs(node):
        os.kill(node.pid, what)


def _runs(node: BrokerNode) -> bool:
    """Return whether a node's process is running; its id may have been reused by another."""
    if not node.pid:
        return False
    if (child := _children.get(node.pid)) is not None:
        return child.poll() is None
    shown = subprocess.run(  # noqa: S603 a process id
        ["ps", "-o", "command=", "-p", str(node.pid)],  # noqa: S607 wherever it is
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"-Dthulawa.broker={node.folder}" in shown.stdout


def _free_ports(first: int, nodes: int) -> list[list[int]]:
    """Return the ports of each node: for clients, clients with a password, and controllers.

    Those for clients count from ``first``; all others are any free ones.
    """
    with ExitStack() as held:
        return [
            [_hold(held, port) for port in (first + number if first else 0, 0, 0)]
            for number in range(nodes)
        ]


def _hold(held: ExitStack, port: int) -> int:
    """Bind a port until the stack closes, so that the next free port is another one."""
    listener = held.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
    except OSError as error:
        raise BrokerFailed(f"port {port} is taken; choose another with --port") from error
    return int(listener.getsockname()[1])


def _properties(node: BrokerNode, nodes: Sequence[BrokerNode], passwords: Mapping[str, str]) -> str:
    """Return a node's settings.

    Internal topics have as many replicas as there are nodes, at most three, and few partitions,
    because all nodes run on one machine. Topics are never created automatically.
    """
    voters = ",".join(f"{one.number}@{_HOST}:{one.controller_port}" for one in nodes)
    copies = min(len(nodes), _MAX_REPLICAS)
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
        users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        settings["listeners"] = f"{settings['listeners']},SECURED://{node.secured_address}"
        settings["listener.security.protocol.map"] = (
            f"{settings['listener.security.protocol.map']},SECURED:SASL_PLAINTEXT"
        )
        settings["sasl.enabled.mechanisms"] = "PLAIN"
        settings["listener.name.secured.plain.sasl.jaas.config"] = f"{module} required {users};"
    return "".join(f"{name}={value}\n" for name, value in settings.items())
