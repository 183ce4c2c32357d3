package router

import (
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/partition"
)

// targeted counts operations by how many of the backends that hold a collection they went to.
type targeted struct{ all, many, one, unsharded atomic.Int64 }

// count counts one operation on a collection that went to parts.
func (t *targeted) count(c *partition.Collection, parts []*partition.Part) {
	switch {
	case !c.Sharded():
		t.unsharded.Add(1)
	case len(parts) < 2:
		t.one.Add(1)
	default:
		switch n := backendsOf(parts); {
		case n == 1:
			t.one.Add(1)
		case n == backendsOf(c.Parts):
			t.all.Add(1)
		default:
			t.many.Add(1)
		}
	}
}

func backendsOf(parts []*partition.Part) int {
	seen := make(map[string]struct{}, 8)
	for _, p := range parts {
		seen[p.Backend] = struct{}{}
	}
	return len(seen)
}

func (t *targeted) describe() bson.D {
	return bson.D{{Key: "allShards", Value: t.all.Load()}, {Key: "manyShards", Value: t.many.Load()}, {Key: "oneShard", Value: t.one.Load()}, {Key: "unsharded", Value: t.unsharded.Load()}}
}

// shardingStatistics is that section of serverStatus.
func (r *Router) shardingStatistics() bson.D {
	s := &r.stats
	view := r.cfg.Table.View()
	collections := 0
	for c := range view.Mapped {
		if !c.Dropped() {
			collections++
		}
	}
	return bson.D{
		{Key: "numHostsTargeted", Value: bson.D{
			{Key: "find", Value: s.toFind.describe()}, {Key: "insert", Value: s.toInsert.describe()}, {Key: "update", Value: s.toUpdate.describe()},
			{Key: "delete", Value: s.toDelete.describe()}, {Key: "aggregate", Value: s.toAggregate.describe()}}},
		{Key: "catalogCache", Value: bson.D{{Key: "numDatabaseEntries", Value: int64(len(view.Catalog.Databases))}, {Key: "numCollectionEntries", Value: int64(collections)}}},
	}
}

// commits counts commits of one kind.
type commits struct{ initiated, successful, micros atomic.Int64 }

// begin notes a commit; the function it returns notes how it ended.
func (c *commits) begin() func(error) {
	c.initiated.Add(1)
	began := time.Now()
	return func(err error) {
		if err == nil {
			c.successful.Add(1)
			c.micros.Add(time.Since(began).Microseconds())
		}
	}
}

func (c *commits) describe() bson.D {
	return bson.D{{Key: "initiated", Value: c.initiated.Load()}, {Key: "successful", Value: c.successful.Load()}, {Key: "successfulDurationMicros", Value: c.micros.Load()}}
}

// txnStats count transactions. A transaction of ours has one participant at most, and there is no commit of two phases.
type txnStats struct {
	started, committed, aborted atomic.Int64
	// noShards, singleShard and recovered are the commits of transactions that touched nothing, that touched a backend, and that this proxy did not begin.
	noShards, singleShard, recovered commits
}

// transactionStatus is the section transactions of serverStatus.
func (r *Router) transactionStatus() bson.D {
	var open, active int64
	r.txns.where(func(t *transaction) bool {
		if t.state == txnOpen || t.state == txnCommitting {
			open++
			if t.cancel != nil {
				active++
			}
		}
		return false
	})
	s := &r.txns.stats
	return bson.D{
		{Key: "currentOpen", Value: open}, {Key: "currentActive", Value: active}, {Key: "currentInactive", Value: open - active},
		{Key: "totalStarted", Value: s.started.Load()}, {Key: "totalCommitted", Value: s.committed.Load()}, {Key: "totalAborted", Value: s.aborted.Load()},
		{Key: "commitTypes", Value: bson.D{{Key: "noShards", Value: s.noShards.describe()}, {Key: "singleShard", Value: s.singleShard.describe()},
			{Key: "recoverWithToken", Value: s.recovered.describe()}}},
	}
}
