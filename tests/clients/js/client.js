// KafkaJS behind one JSON request and one JSON answer a line; tests/clients/adapters/piped.py is the other end.
'use strict'

const readline = require('readline')
const kafkajs = require('kafkajs')
const snappy = require('snappyjs')
const lz4 = require('lz4-napi')
const { ZstdCodec } = require('zstd-codec')

const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = kafkajs
const CODECS = { none: 0, gzip: 1, snappy: 2, lz4: 3, zstd: 4 }
const TOPIC_ALREADY_EXISTS = 36
const BATCH_RECORDS = 10000
const FETCH_TIMEOUT_MS = 120000
const MEBIBYTE = 1024 * 1024

const XERIAL_HEADER = Buffer.from([0x82, 0x53, 0x4e, 0x41, 0x50, 0x50, 0x59, 0x00])
const isXerial = buffer => buffer.subarray(0, 8).equals(XERIAL_HEADER)

function readXerial(buffer) {
  const parts = []
  for (let at = 16; at < buffer.length; ) {
    const size = buffer.readInt32BE(at)
    parts.push(Buffer.from(snappy.uncompress(buffer.subarray(at + 4, at + 4 + size))))
    at += 4 + size
  }
  return Buffer.concat(parts)
}

function registerCodecs(zstd) {
  CompressionCodecs[CompressionTypes.Snappy] = () => ({
    compress: async encoder => Buffer.from(snappy.compress(encoder.buffer)),
    decompress: async buffer => (isXerial(buffer) ? readXerial(buffer) : Buffer.from(snappy.uncompress(buffer))),
  })
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: async encoder => lz4.compressFrame(encoder.buffer),
    decompress: async buffer => lz4.decompressFrame(buffer),
  })
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
    decompress: async buffer => Buffer.from(zstd.decompress(buffer)),
  })
}

const toBytes = text => (text === null ? null : Buffer.from(text, 'base64'))
const toText = bytes => (bytes === null || bytes === undefined ? null : Buffer.from(bytes).toString('base64'))

function toMessage({ key, value, headers, timestamp }) {
  const grouped = {}
  for (const [name, text] of headers) (grouped[name] = grouped[name] || []).push(toBytes(text))
  for (const name of Object.keys(grouped)) if (grouped[name].length === 1) grouped[name] = grouped[name][0]
  const message = { key: toBytes(key), value: toBytes(value), headers: grouped }
  return timestamp === null ? message : { ...message, timestamp: String(timestamp) }
}

function fromMessage({ key, value, headers, timestamp, offset }) {
  const flat = []
  for (const [name, value] of Object.entries(headers || {}))
    for (const one of Array.isArray(value) ? value : [value]) flat.push([name, toText(one)])
  return { key: toText(key), value: toText(value), headers: flat, timestamp: Number(timestamp), offset: Number(offset) }
}

class Client {
  constructor(bootstrap) {
    this.kafka = new Kafka({ clientId: 'tests', brokers: [bootstrap], logLevel: logLevel.NOTHING })
    this.admin = this.kafka.admin()
    this.producers = new Map()
  }

  async connect() {
    await this.admin.connect()
    return this
  }

  async producer(idempotent) {
    if (!this.producers.has(idempotent)) {
      const producer = this.kafka.producer({ idempotent, maxInFlightRequests: 1, allowAutoTopicCreation: false })
      await producer.connect()
      this.producers.set(idempotent, producer)
    }
    return this.producers.get(idempotent)
  }

  async close() {
    for (const producer of this.producers.values()) await producer.disconnect()
    if (this.cluster) await this.cluster.disconnect()
    await this.admin.disconnect()
  }

  async produce({ topic, partition, codec, acks, records }) {
    const producer = await this.producer(acks === -1)
    const messages = records.map(record => ({ ...toMessage(record), partition }))
    const offsets = []
    // KafkaJS makes one batch of what it is given
    for (let at = 0; at < messages.length; at += BATCH_RECORDS) {
      const batch = messages.slice(at, at + BATCH_RECORDS)
      const [written] = await producer.send({ topic, acks, compression: CODECS[codec], messages: batch })
      if (acks !== 0) batch.forEach((_, i) => offsets.push(Number(written.baseOffset) + i))
    }
    return offsets
  }

  // KafkaJS reads only in groups, so this asks as its own consumer does: its cluster, its leader, its fetch
  async fetch({ topic, partition, offset, count }) {
    const broker = await this.leader(topic, partition)
    const records = []
    const end = Date.now() + FETCH_TIMEOUT_MS
    while (records.length < count && Date.now() < end) {
      const answer = await broker.fetch({
        maxWaitTime: 5000,
        minBytes: 1,
        maxBytes: 50 * MEBIBYTE,
        isolationLevel: 0,
        topics: [{ topic, partitions: [{ partition, fetchOffset: offset, maxBytes: MEBIBYTE }] }],
      })
      const { messages } = answer.responses[0].partitions[0]
      const wanted = messages.filter(message => Number(message.offset) >= offset)
      if (wanted.length === 0) continue
      records.push(...wanted.map(fromMessage))
      offset = records[records.length - 1].offset + 1
    }
    return records.slice(0, count)
  }

  async leader(topic, partition) {
    const [createCluster] = Object.getOwnPropertySymbols(this.kafka).filter(symbol =>
      symbol.description.endsWith('createCluster')
    )
    this.cluster = this.cluster || this.kafka[createCluster]({ allowAutoTopicCreation: false })
    await this.cluster.connect()
    await this.cluster.addTargetTopic(topic)
    const [nodeId] = Object.keys(this.cluster.findLeaderForPartitions(topic, [partition]))
    return this.cluster.findBroker({ nodeId })
  }

  async offsets({ topic, partition }) {
    const all = await this.admin.fetchTopicOffsets(topic)
    const { low, high } = all.find(entry => entry.partition === partition)
    return [Number(low), Number(high)]
  }

  // fetchTopicOffsetsByTimestamp answers the end offset where there is no such record
  async offset_for_time({ topic, partition, timestamp }) {
    const all = await this.admin.fetchTopicOffsetsByTimestamp(topic, timestamp)
    const found = Number(all.find(entry => entry.partition === partition).offset)
    const [, high] = await this.offsets({ topic, partition })
    return found === high ? null : found
  }

  async create_topic({ topic, partitions, configs }) {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    const created = await this.admin.createTopics({
      waitForLeaders: false,
      topics: [{ topic, numPartitions: partitions, replicationFactor: 1, configEntries }],
    })
    // KafkaJS takes a topic that is already there for success and answers false
    if (!created) throw Object.assign(new Error(`${topic} exists`), { code: TOPIC_ALREADY_EXISTS })
  }

  async delete_topic({ topic }) {
    await this.admin.deleteTopics({ topics: [topic] })
  }

  topics() {
    return this.admin.listTopics()
  }

  async partition_count({ topic }) {
    const { topics } = await this.admin.fetchTopicMetadata({ topics: [topic] })
    return topics[0].partitions.length
  }

  async create_partitions({ topic, total }) {
    await this.admin.createPartitions({ topicPartitions: [{ topic, count: total }] })
  }

  async topic_configs({ topic }) {
    const { resources } = await this.admin.describeConfigs({
      includeSynonyms: false,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }],
    })
    return Object.fromEntries(resources[0].configEntries.map(entry => [entry.configName, entry.configValue]))
  }

  async alter_topic_configs({ topic, configs }) {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    await this.admin.alterConfigs({ resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries }] })
  }

  async delete_records({ topic, partition, before_offset }) {
    await this.admin.fetchTopicOffsets(topic) // KafkaJS looks for the leader before it asks for the metadata
    await this.admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before_offset) }] })
  }
}

// an aggregate, or the retrier's wrapping, holds the error of the protocol somewhere below it
function protocolError(error) {
  if (typeof error.code === 'number') return error
  const inner = [error.cause, ...(error.errors || []), error.originalError].filter(Boolean)
  return inner.map(protocolError).find(Boolean) || null
}

async function main(bootstrap) {
  await new Promise(resolve => ZstdCodec.run(zstd => resolve(registerCodecs(new zstd.Streaming()))))
  const client = await new Client(bootstrap).connect()
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { op, ...args } = JSON.parse(line)
    let answer
    try {
      answer = { ok: (await client[op](args)) ?? null }
    } catch (error) {
      const cause = protocolError(error)
      answer = { error: String((cause || error).stack), code: cause ? cause.code : null }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  await client.close()
}

main(process.argv[2])
