// KafkaJS as a member of a group: prints the value of every record, then commits; leaves at SIGTERM.
//     node member.js BOOTSTRAP GROUP TOPIC       a topic that begins with ^ is a pattern
'use strict'

const { Kafka, PartitionAssigners, logLevel } = require('kafkajs')

// the assignment is what others call roundrobin; under that name KafkaJS can share a group with them
const roundrobin = options => ({ ...PartitionAssigners.roundRobin(options), name: 'roundrobin' })

async function main(bootstrap, groupId, topic) {
  const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { maxRetryTime: 500, retries: 50 } })
  const consumer = kafka.consumer({
    groupId,
    partitionAssigners: [roundrobin],
    sessionTimeout: 3000,
    rebalanceTimeout: 10000,
    heartbeatInterval: 300,
    metadataMaxAge: 500,
    maxWaitTimeInMs: 100,
  })
  process.on('SIGTERM', () => consumer.disconnect().then(() => process.exit(0)))
  await consumer.connect()
  await consumer.subscribe({ topics: [topic.startsWith('^') ? new RegExp(topic) : topic], fromBeginning: true })
  await consumer.run({
    eachBatch: async ({ batch, heartbeat }) => {
      process.stdout.write(batch.messages.map(message => `${message.value}\n`).join(''))
      await heartbeat()
    },
  })
}

main(...process.argv.slice(2))
