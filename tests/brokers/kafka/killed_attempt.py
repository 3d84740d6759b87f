"""Set a row aside in a transaction that is never committed, and wait to be killed.

``python -m tests.brokers.kafka.killed_attempt ADDRESS TOPIC QUERY``
"""

import sys
import time

from tests.spark.map_by_key.test_dead_letters import failing, of_topic, run
from thulawa.brokers.kafka.transactions import SinkProducer
from thulawa.spark.map_by_key import worker
from thulawa.spark.map_by_key.dead_letters import RowIdentity, dead_letter_topic
from thulawa.spark.task_context import SparkTask

if __name__ == "__main__":
    address, topic, query = sys.argv[1:]

    def commit(self: SinkProducer, _: object) -> None:
        self.flush()
        sys.stdout.write("written\n")
        sys.stdout.flush()
        time.sleep(300)

    SinkProducer.commit = commit  # type: ignore[assignment,method-assign]
    worker.current_task = lambda: SparkTask(0, query, 4)  # type: ignore[attr-defined]
    dead = dead_letter_topic(f"{address}#{topic}")
    run(None, failing(10), of_topic(0, 50), row_identity=RowIdentity("record"), dead_letters=dead)
