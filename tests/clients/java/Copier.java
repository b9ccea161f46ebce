import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies COUNT records from one topic to another in transactions, every third of which it aborts and repeats. Then
 * another producer takes its place in the middle of a transaction.
 */
public final class Copier {
    public static void main(String[] arguments) {
        String bootstrap = arguments[0];
        String input = arguments[1];
        String output = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        Properties reading = new Properties();
        reading.put("bootstrap.servers", bootstrap);
        reading.put("group.id", "copier-" + output);
        reading.put("group.protocol", arguments[4]);
        reading.put("enable.auto.commit", "false");
        reading.put("auto.offset.reset", "earliest");
        reading.put("isolation.level", "read_committed");
        reading.put("max.poll.records", "20");
        Properties writing = new Properties();
        writing.put("bootstrap.servers", bootstrap);
        writing.put("transactional.id", "copier-" + output);
        int copied = 0;
        try (KafkaConsumer<String, String> consumer =
                        new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
                KafkaProducer<String, String> producer =
                        new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(input));
            for (int transaction = 1; copied < count; transaction++) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(output, record.key(), record.value()));
                }
                producer.sendOffsetsToTransaction(positions(consumer), consumer.groupMetadata());
                if (transaction % 3 == 0) {
                    producer.abortTransaction();
                    consumer.committed(consumer.assignment()).forEach((partition, committed) ->
                            consumer.seek(partition, committed == null ? 0 : committed.offset()));
                } else {
                    producer.commitTransaction();
                    copied += records.count();
                }
            }
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(output, "of a zombie"));
            producer.flush();
            try (KafkaProducer<String, String> successor =
                    new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer())) {
                successor.initTransactions();
            }
            try {
                producer.commitTransaction();
                throw new IllegalStateException("the producer is not fenced");
            } catch (ProducerFencedException expected) {
                System.out.println("fenced");
            }
        }
        System.out.println("copied " + copied);
    }

    private static Map<TopicPartition, OffsetAndMetadata> positions(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        for (TopicPartition partition : consumer.assignment()) {
            positions.put(partition, new OffsetAndMetadata(consumer.position(partition)));
        }
        return positions;
    }
}
