// Apache Kafka's Java client behind one JSON request and one JSON answer a line; adapters/piped.py is the other end.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Client implements AutoCloseable {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration FETCH_TIMEOUT = Duration.ofSeconds(120);

    private final String bootstrap;
    private final Admin admin;
    private final KafkaConsumer<byte[], byte[]> consumer;

    Client(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        this.consumer = new KafkaConsumer<>(
            Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "none"),
            new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    @Override
    public void close() {
        consumer.close();
        admin.close();
    }

    private Object call(JsonNode request) throws Exception {
        String topic = request.path("topic").asText();
        TopicPartition place = new TopicPartition(topic, request.path("partition").asInt());
        return switch (request.path("op").asText()) {
            case "produce" -> produce(place, request);
            case "fetch" -> fetch(place, request.path("offset").asLong(), request.path("count").asInt());
            case "offsets" -> List.of(offset(place, OffsetSpec.earliest()), offset(place, OffsetSpec.latest()));
            case "offset_for_time" -> found(offset(place, OffsetSpec.forTimestamp(request.path("timestamp").asLong())));
            case "offset_of_max_timestamp" -> found(offset(place, OffsetSpec.maxTimestamp()));
            case "create_topic" -> createTopic(topic, request);
            case "delete_topic" -> admin.deleteTopics(List.of(topic)).all().get();
            case "topics" -> admin.listTopics().names().get();
            case "partition_count" ->
                admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
            case "create_partitions" ->
                admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(request.path("total").asInt()))).all().get();
            case "topic_configs" -> topicConfigs(topic);
            case "alter_topic_configs" -> alterTopicConfigs(topic, request.path("configs"));
            case "delete_records" -> admin.deleteRecords(
                Map.of(place, RecordsToDelete.beforeOffset(request.path("before_offset").asLong()))).all().get();
            default -> throw new IllegalArgumentException(request.toString());
        };
    }

    private List<Long> produce(TopicPartition place, JsonNode request) throws Exception {
        int acks = request.path("acks").asInt();
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap, "acks", acks == -1 ? "all" : String.valueOf(acks),
            "compression.type", request.path("codec").asText(), "linger.ms", 5,
            "max.request.size", 20_000_000, "delivery.timeout.ms", 120_005, "request.timeout.ms", 120_000));
        if (acks != -1) settings.put("enable.idempotence", false);
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                 new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode item : request.path("records")) futures.add(producer.send(toRecord(place, item)));
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> future : futures) offsets.add(future.get().offset());
        return offsets;
    }

    private List<ObjectNode> fetch(TopicPartition place, long offset, int count) {
        consumer.assign(List.of(place));
        consumer.seek(place, offset);
        List<ObjectNode> records = new ArrayList<>();
        long deadline = System.nanoTime() + FETCH_TIMEOUT.toNanos();
        while (records.size() < count && System.nanoTime() < deadline)
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1)))
                if (records.size() < count) records.add(fromRecord(record));
        return records;
    }

    private long offset(TopicPartition place, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(place, spec)).partitionResult(place).get().offset();
    }

    private static Long found(long offset) {
        return offset == -1 ? null : offset;
    }

    private Object createTopic(String topic, JsonNode request) throws Exception {
        NewTopic created = new NewTopic(topic, request.path("partitions").asInt(), (short) 1);
        return admin.createTopics(List.of(created.configs(strings(request.path("configs"))))).all().get();
    }

    private Map<String, String> topicConfigs(String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, String> configs = new HashMap<>();
        for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries())
            configs.put(entry.name(), entry.value());
        return configs;
    }

    private Object alterTopicConfigs(String topic, JsonNode configs) throws Exception {
        Collection<AlterConfigOp> operations = new ArrayList<>();
        strings(configs).forEach((name, value) ->
            operations.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return admin.incrementalAlterConfigs(Map.of(resource, operations)).all().get();
    }

    private static Map<String, String> strings(JsonNode object) {
        Map<String, String> strings = new HashMap<>();
        object.fields().forEachRemaining(field -> strings.put(field.getKey(), field.getValue().asText()));
        return strings;
    }

    private static ProducerRecord<byte[], byte[]> toRecord(TopicPartition place, JsonNode item) {
        Long timestamp = item.path("timestamp").isNull() ? null : item.path("timestamp").asLong();
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
            place.topic(), place.partition(), timestamp, toBytes(item.path("key")), toBytes(item.path("value")));
        for (JsonNode header : item.path("headers")) record.headers().add(header.get(0).asText(), toBytes(header.get(1)));
        return record;
    }

    private static ObjectNode fromRecord(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode item = JSON.createObjectNode();
        item.put("key", toText(record.key())).put("value", toText(record.value()));
        item.put("timestamp", record.timestamp()).put("offset", record.offset());
        ArrayNode headers = item.putArray("headers");
        for (Header header : record.headers()) headers.addArray().add(header.key()).add(toText(header.value()));
        return item;
    }

    private static byte[] toBytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String toText(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    private static ObjectNode refusal(Throwable failure) {
        Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
        // the consumer throws an exception of its own for this one, which the table of errors does not know
        Errors error = cause instanceof OffsetOutOfRangeException
            ? Errors.OFFSET_OUT_OF_RANGE : Errors.forException(cause);
        ObjectNode answer = JSON.createObjectNode().put("error", cause.toString());
        return error == Errors.UNKNOWN_SERVER_ERROR ? answer.putNull("code") : answer.put("code", error.code());
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        try (Client client = new Client(arguments[0])) {
            for (String line = requests.readLine(); line != null; line = requests.readLine()) {
                ObjectNode answer = JSON.createObjectNode();
                try {
                    answer.set("ok", JSON.valueToTree(client.call(JSON.readTree(line))));
                } catch (Exception failure) {
                    answer = refusal(failure);
                }
                System.out.println(answer);
            }
        }
    }
}
