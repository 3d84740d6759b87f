package thulawa.peers;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Counts valid and invalid payments per second with Kafka Streams: the key becomes the status, so
 * every message goes through a repartition topic.
 *
 * <p>Arguments: bootstrap servers, input topic, messages in it, threads. Prints one JSON object
 * when all messages are counted. The first fifth is taken as warming up.
 */
public final class TopicHealth {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Set<String> CURRENCIES = Set.of("EUR", "LKR", "USD");

  private TopicHealth() {}

  public static void main(String[] arguments) throws InterruptedException {
    String input = arguments[1];
    long total = Long.parseLong(arguments[2]);
    long warm = total / 5;
    AtomicLong counted = new AtomicLong();
    AtomicLong warmAt = new AtomicLong();
    AtomicLong warmCpu = new AtomicLong();
    CountDownLatch done = new CountDownLatch(1);

    StreamsBuilder builder = new StreamsBuilder();
    builder.stream(input, Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
        .map((key, value) -> KeyValue.pair(isValid(value) ? "valid" : "invalid", 1L))
        .groupByKey(Grouped.with("status", Serdes.String(), Serdes.Long()))
        .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(1), Duration.ofDays(1)))
        .aggregate(
            () -> 0L,
            (key, value, sum) -> {
              long number = counted.incrementAndGet();
              if (number == warm) {
                warmAt.set(System.nanoTime());
                warmCpu.set(cpuNanos());
              }
              if (number == total) {
                done.countDown();
              }
              return sum + value;
            },
            Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("counts")
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.Long())
                .withRetention(Duration.ofDays(2)))
        .toStream((window, value) -> window.key() + "@" + window.window().start())
        .to(input + "-streams-metrics", Produced.with(Serdes.String(), Serdes.Long()));

    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, input + "-streams");
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, arguments[3]);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1000);
    settings.put("auto.offset.reset", "earliest");
    settings.put("max.poll.records", 5000);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
    try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
      streams.setUncaughtExceptionHandler(
          error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
          });
      streams.start();
      done.await();
      double seconds = (System.nanoTime() - warmAt.get()) / 1e9;
      double cpu = (cpuNanos() - warmCpu.get()) / 1e9;
      System.out.printf(
          "{\"messages\": %d, \"seconds\": %.3f, \"cpu\": %.3f}%n", total - warm, seconds, cpu);
      System.out.flush();
    }
  }

  private static long cpuNanos() {
    return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
        .getProcessCpuTime();
  }

  private static boolean isValid(byte[] value) {
    if (value == null) {
      return false;
    }
    try {
      JsonNode message = JSON.readTree(value);
      return message != null
          && message.path("id").isIntegralNumber()
          && message.path("id").longValue() >= 1
          && message.path("amount").isNumber()
          && message.path("amount").doubleValue() > 0
          && CURRENCIES.contains(message.path("currency").textValue() + "");
    } catch (IOException error) {
      return false;
    }
  }
}
