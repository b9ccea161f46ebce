// Copies COUNT records from one topic to another with franz-go's sessions, aborting every third transaction:
// BOOTSTRAP INPUT OUTPUT COUNT. Then another producer takes its place in the middle of a transaction.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	bootstrap, input, output := os.Args[1], os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap),
		kgo.ConsumerGroup("copier-"+output),
		kgo.ConsumeTopics(input),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.TransactionalID("copier-"+output),
		kgo.DefaultProduceTopic(output),
	)
	check(err)
	defer session.Close()
	ctx := context.Background()
	for copied, transaction := 0, 1; copied < count; transaction++ {
		fetches := session.PollRecords(ctx, 20)
		check(fetches.Err())
		check(session.Begin())
		promises := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Key: record.Key, Value: record.Value}, promises.Promise())
		})
		wanted := kgo.TransactionEndTry(promises.Err() == nil && transaction%3 != 0)
		committed, err := session.End(ctx, wanted)
		check(err)
		if committed {
			copied += fetches.NumRecords()
		}
	}
	fence(ctx, session, bootstrap, output)
}

func fence(ctx context.Context, zombie *kgo.GroupTransactSession, bootstrap, output string) {
	check(zombie.Begin())
	check(zombie.ProduceSync(ctx, kgo.StringRecord("of a zombie")).FirstErr())
	successor, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID("copier-"+output))
	check(err)
	defer successor.Close()
	_, _, err = successor.ProducerID(ctx)
	check(err)
	committed, err := zombie.End(ctx, kgo.TryCommit)
	if committed || !(errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)) {
		check(fmt.Errorf("the producer is not fenced: %v, %w", committed, err))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
