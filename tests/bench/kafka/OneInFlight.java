import java.util.Arrays;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A producer that sends one record and waits for its acknowledgement before the next one.
 * Arguments: bootstrap servers, topic, bytes of a record, warm-up seconds, measured seconds. Prints one JSON line.
 */
public class OneInFlight {
    private static final int MAX = 1_000_000;

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0], "acks", "all", "linger.ms", "0",
            "key.serializer", ByteArraySerializer.class, "value.serializer", ByteArraySerializer.class);
        byte[] value = new byte[Integer.parseInt(arguments[2])];
        Arrays.fill(value, (byte) 'v');
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            measure(producer, arguments[1], value, Double.parseDouble(arguments[3]));
            double seconds = Double.parseDouble(arguments[4]);
            long[] took = measure(producer, arguments[1], value, seconds);
            System.out.printf("{\"records_per_s\": %.1f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}%n",
                took.length / seconds, took[took.length / 2] / 1e6, took[took.length * 99 / 100] / 1e6);
        }
    }

    /** Return the sorted times of all records in nanoseconds. */
    private static long[] measure(KafkaProducer<byte[], byte[]> producer, String topic, byte[] value, double seconds)
            throws Exception {
        long[] took = new long[MAX];
        int count = 0;
        long end = System.nanoTime() + (long) (seconds * 1e9);
        for (long began = System.nanoTime(); began < end && count < MAX; began = System.nanoTime()) {
            producer.send(new ProducerRecord<>(topic, value)).get();
            took[count++] = System.nanoTime() - began;
        }
        took = Arrays.copyOf(took, count);
        Arrays.sort(took);
        return took;
    }
}
