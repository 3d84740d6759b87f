package thulawa.peers;

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.vertx.VertxParallelEoSStreamProcessor;
import io.vertx.core.Promise;
import io.vertx.core.Vertx;
import io.vertx.ext.web.client.WebClient;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Confluent's Parallel Consumer, its Vert.x module: calls that wait without a thread, in key order.
 *
 * <p>Arguments: bootstrap, group, input, output, calls in flight, mean milliseconds of a call. A
 * record is done when the broker has its output. Offsets are committed every 200 ms: with the
 * default of 5 s it stops for seconds at a time. Runs until it is killed.
 */
public final class ParallelPeer {
    private ParallelPeer() {}

    public static void main(String[] arguments) {
        String output = arguments[3];
        double mean = Double.parseDouble(arguments[5]);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                producerSettings(arguments[0]), new ByteArraySerializer(), new ByteArraySerializer());
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                consumerSettings(arguments), new ByteArrayDeserializer(), new ByteArrayDeserializer());
        ParallelConsumerOptions<byte[], byte[]> options =
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .ordering(ProcessingOrder.KEY)
                        .consumer(consumer)
                        .maxConcurrency(Integer.parseInt(arguments[4]))
                        .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                        .commitInterval(Duration.ofMillis(200))
                        .build();
        Vertx vertx = Vertx.vertx();
        VertxParallelEoSStreamProcessor<byte[], byte[]> processor =
                new VertxParallelEoSStreamProcessor<>(vertx, WebClient.create(vertx), options);
        processor.subscribe(List.of(arguments[2]));
        processor.vertxFuture(context -> {
            byte[] key = context.getSingleConsumerRecord().key();
            byte[] value = context.getSingleConsumerRecord().value();
            Promise<Void> done = Promise.promise();
            long wait = Math.max(1, Math.round(Calls.milliseconds(value, mean)));
            vertx.setTimer(wait, timer -> producer.send(
                    new ProducerRecord<>(output, key, value),
                    (metadata, error) -> {
                        if (error == null) {
                            done.complete();
                        } else {
                            done.fail(error);
                        }
                    }));
            return done.future();
        });
    }

    private static Properties producerSettings(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("linger.ms", 1);
        settings.put("batch.size", 128 * 1024);
        return settings;
    }

    private static Properties consumerSettings(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        settings.put("max.poll.records", 2000);
        return settings;
    }
}
