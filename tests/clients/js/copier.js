// Copies COUNT records with KafkaJS in transactions; every third one is aborted first: BOOTSTRAP INPUT OUTPUT COUNT.
// Then another producer takes its place in the middle of a transaction.
'use strict'

const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, input, output, wanted] = process.argv.slice(2)
const group = `copier-${output}`
const BATCH = 20

async function copy(producer, partition, messages, commits) {
  const transaction = await producer.transaction()
  await transaction.send({ topic: output, messages: messages.map(({ key, value }) => ({ key, value })) })
  const offset = String(Number(messages[messages.length - 1].offset) + 1)
  await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic: input, partitions: [{ partition, offset }] }] })
  await (commits ? transaction.commit() : transaction.abort())
}

async function fence(zombie, successor) {
  const transaction = await zombie.transaction()
  await transaction.send({ topic: output, messages: [{ value: 'of a zombie' }] })
  await successor.connect()
  const next = await successor.transaction()
  const error = await transaction.commit().then(() => null, refused => refused)
  if (!error || !['PRODUCER_FENCED', 'INVALID_PRODUCER_EPOCH'].includes(error.type)) {
    throw new Error(`the producer is not fenced: ${error}`)
  }
  await next.send({ topic: output, messages: [{ value: 'aborted' }] })
  await next.abort()
  await successor.disconnect()
}

async function main() {
  const kafka = new Kafka({ clientId: 'copier', brokers: [bootstrap], logLevel: logLevel.NOTHING })
  const settings = { transactionalId: group, maxInFlightRequests: 1, idempotent: true }
  const producer = kafka.producer(settings)
  const consumer = kafka.consumer({ groupId: group, readUncommitted: false })
  await producer.connect()
  await consumer.connect()
  await consumer.subscribe({ topic: input, fromBeginning: true })
  let copied = 0
  const done = new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    const eachBatch = async ({ batch, resolveOffset }) => {
      for (let at = 0; at < batch.messages.length; at += BATCH) {
        const messages = batch.messages.slice(at, at + BATCH)
        if ((at / BATCH) % 3 === 2) await copy(producer, batch.partition, messages, false)
        await copy(producer, batch.partition, messages, true)
        resolveOffset(messages[messages.length - 1].offset)
        copied += messages.length
      }
      if (copied >= Number(wanted)) resolve()
    }
    consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch }).catch(reject)
  })
  await done
  await consumer.disconnect()
  await fence(producer, kafka.producer(settings))
  await producer.disconnect()
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
