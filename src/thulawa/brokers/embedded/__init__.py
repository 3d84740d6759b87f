"""The embedded log: Kafka's topics in a folder, for one machine and no broker.

::

    from thulawa.brokers.embedded import Log, ProducerRecord, Retention

    log = Log("file:./topics")
    log.create_topic("visits", partitions=2, retention=Retention(seconds=7 * 86_400))
    log.create_topic("last-visit", compact=True)

    with log.producer() as producer:
        producer.send("visits", key=b"10.0.0.1", value=b"/", headers={"agent": b"curl"})
        producer.flush()  # now it is in the log, whatever happens to this process

    with log.consumer("visits", group="audit", start="earliest") as consumer:
        for record in consumer.poll(max_records=500, timeout=1.0):
            print(record.partition, record.offset, record.key, record.value)
        consumer.commit()

    # for sources and sinks: offsets, ranges, and batches that are written exactly once
    log.end_offsets("visits")
    for columns in log.read_columns("visits", 0, start=0):
        print(columns.offsets, columns.keys, columns.values)
    log.append({"visits": [ProducerRecord(b"k", b"v")]}, marker=("geo/sink", 0), batch=7)

What holds, also when any process is killed at any point: a record that was confirmed is there,
once; offsets of a partition are assigned without gaps, in the order of commits; a batch of
records, to however many topics, is there whole or not at all. The reference is
`docs/reference/embedded-log.md`.
"""

from thulawa.brokers.embedded.batches import Columns
from thulawa.brokers.embedded.consumer import Consumer
from thulawa.brokers.embedded.log import Log
from thulawa.brokers.embedded.producer import Producer
from thulawa.brokers.embedded.topic_options import (
    Appended,
    Cleaned,
    Marker,
    PartitionDescription,
    Retention,
    TopicDescription,
)
from thulawa.core.partitioning import partition_of
from thulawa.core.types import ConsumerRecord, ProducerRecord

__all__ = [
    "Appended",
    "Cleaned",
    "Columns",
    "Consumer",
    "ConsumerRecord",
    "Log",
    "Marker",
    "PartitionDescription",
    "Producer",
    "ProducerRecord",
    "Retention",
    "TopicDescription",
    "partition_of",
]
