"""Write within a transaction that is never committed, print a line, and wait to be killed.

``python -m tests.brokers.killed_writer ADDRESS TOPIC APPLICATION``
"""

import sys
import time

from thulawa.brokers.port import WriterId, open_broker
from thulawa.core.markers import LastBatch
from thulawa.core.types import ProducerRecord

if __name__ == "__main__":
    address, topic, application = sys.argv[1:]
    writer = WriterId(application=application, query="q")
    with open_broker(address).transaction(writer, 0, LastBatch(0)) as transaction:
        transaction.write(topic, [ProducerRecord(b"k", b"of the killed")])
        sys.stdout.write("written\n")
        sys.stdout.flush()
        time.sleep(300)
