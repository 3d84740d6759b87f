package thulawa.peers;

import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Kafka Streams: a call for each record, or a count by key with every update written.
 *
 * <p>Arguments: bootstrap, application, input, output, folder, guarantee, then "count" or the mean
 * milliseconds of a call. Runs until it is killed.
 */
public final class StreamsPeer {
    private StreamsPeer() {}

    public static void main(String[] arguments) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<byte[], byte[]> records = builder.stream(arguments[2]);
        if (arguments[6].equals("count")) {
            records.groupByKey()
                    .count(Materialized.<byte[], Long, KeyValueStore<Bytes, byte[]>>as("counts")
                            .withKeySerde(Serdes.ByteArray()).withValueSerde(Serdes.Long()))
                    .toStream()
                    .mapValues(count -> Long.toString(count).getBytes())
                    .to(arguments[3]);
        } else {
            double mean = Double.parseDouble(arguments[6]);
            records.mapValues(value -> Calls.block(value, mean))
                    .to(arguments[3], Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), settings(arguments));
        streams.start();
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, arguments[5]);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // every update is written
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1); // there is one partition
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        // a poll must end before the group thinks us dead: slow calls, many records
        settings.put(StreamsConfig.consumerPrefix("max.poll.records"),
                arguments[6].equals("count") ? 2000 : 100);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.consumerPrefix("isolation.level"), "read_committed");
        settings.put(StreamsConfig.producerPrefix("linger.ms"), 5);
        settings.put(StreamsConfig.producerPrefix("batch.size"), 128 * 1024);
        return settings;
    }
}
