"""Processes divide the partitions of topics by leases, and take over those of others."""

from pathlib import Path

import pytest

from thulawa.brokers.embedded.partition_leases import PartitionLeases
from thulawa.brokers.port import open_broker
from thulawa.core.types import TopicPartition


def test_leases_are_shared_evenly_and_released(tmp_path: Path) -> None:
    partitions = [TopicPartition("tx", number) for number in range(5)]
    everything = set(partitions)
    one = PartitionLeases(tmp_path, lambda: partitions)
    assert one.assigned() == everything
    other = PartitionLeases(tmp_path, lambda: partitions)
    shares = [one.assigned(), other.assigned(), one.assigned(), other.assigned()]
    assert sorted(map(len, shares[2:])) == [2, 3]
    assert shares[2] | shares[3] == everything
    one.close()
    assert other.assigned() == everything
    del partitions[2:]
    assert other.assigned() == set(partitions)
    other.close()
    assert list(tmp_path.glob("@*")) == []


def test_a_topic_may_have_the_name_of_a_member(tmp_path: Path) -> None:
    partitions = {
        TopicPartition(f"{start}{number}", 0) for number in range(3) for start in ("member-", "")
    }
    one, other = (PartitionLeases(tmp_path, lambda: partitions) for _ in range(2))
    for _ in range(2):
        shares = [one.assigned(), other.assigned()]
    assert shares[0] | shares[1] == partitions
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("group", "topics"), [("metrics-2", ["tx"]), ("metrics", ["ty"]), ("metrics", ["tx", "ty"])]
)
def test_other_groups_and_other_topics_have_separate_leases(
    tmp_path: Path, group: str, topics: list[str]
) -> None:
    broker = open_broker(f"file:{tmp_path}/topics")
    for topic in ("tx", "ty"):
        broker.create_topic(topic, 3)
    groups = [("metrics", ["tx"]), (group, topics)]
    members = [broker.join_group(f"health/{name}", wanted) for name, wanted in groups]
    for _ in range(2):
        for member, (_, wanted) in zip(members, groups, strict=True):
            assert member.assigned() == {
                TopicPartition(topic, number) for topic in wanted for number in range(3)
            }
    for member in members:
        member.close()


def test_topics_may_be_named_in_any_order_to_be_shared(tmp_path: Path) -> None:
    broker = open_broker(f"file:{tmp_path}/topics")
    for topic in ("tx", "ty"):
        broker.create_topic(topic, 2)
    one, other = (broker.join_group("health", order) for order in (["tx", "ty"], ["ty", "tx"]))
    one.assigned(), other.assigned()  # releases the share of the other
    assert [len(one.assigned()), len(other.assigned())] == [2, 2]
    one.close()
    other.close()
