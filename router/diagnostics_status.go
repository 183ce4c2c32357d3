package router

import (
	"context"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

var _ = register(func(r *Router) []Command {
	return []Command{
		{Name: "serverStatus", Help: "shows the proxy's counters", Run: r.serverStatus},
		{Name: "getDiagnosticData", Admin: true, Help: "shows the proxy's counters as monitoring samples them", Run: r.getDiagnosticData},
		{Name: "connPoolStats", Help: "shows the connections to the backends", Run: r.connPoolStats},
	}
})

// activeConns counts the connections on which a request is being answered.
func (r *Router) activeConns() (active int64) {
	r.eachConn(func(c *Conn) {
		c.mu.Lock()
		if c.busy {
			active++
		}
		c.mu.Unlock()
	})
	return active
}

// serverStatus shows what mongos shows, as far as a proxy has it.
func (r *Router) serverStatus(context.Context, *Request) (Reply, error) {
	return docReply(r.statusDoc())
}

// getDiagnosticData is a sample of serverStatus in the shape of a server's own recording.
func (r *Router) getDiagnosticData(context.Context, *Request) (Reply, error) {
	start := bson.NewDateTimeFromTime(time.Now())
	status := bson.D{{Key: "start", Value: start}}
	status = append(status, r.statusDoc()...)
	end := bson.NewDateTimeFromTime(time.Now())
	status = append(status, bson.E{Key: "end", Value: end})
	return docReply(bson.D{{Key: "data", Value: bson.D{{Key: "start", Value: start}, {Key: "serverStatus", Value: status}, {Key: "end", Value: end}}}})
}

func (r *Router) statusDoc() bson.D {
	s, up := &r.stats, time.Since(r.started)
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	open := s.connections.Load()
	return bson.D{
		{Key: "host", Value: hostname()},
		{Key: "version", Value: r.version()},
		{Key: "process", Value: "mongos"},
		{Key: "service", Value: bson.A{"router"}},
		{Key: "pid", Value: int64(os.Getpid())},
		{Key: "uptime", Value: math.Floor(up.Seconds())}, // mongostat takes a double for a whole number
		{Key: "uptimeMillis", Value: up.Milliseconds()},
		{Key: "uptimeEstimate", Value: int64(up.Seconds())},
		{Key: "localTime", Value: bson.NewDateTimeFromTime(time.Now())},
		{Key: "asserts", Value: bson.D{{Key: "regular", Value: int32(0)}, {Key: "warning", Value: int32(0)}, {Key: "msg", Value: int32(0)},
			{Key: "user", Value: s.failed.Load()}, {Key: "rollovers", Value: int32(0)}}},
		{Key: "connections", Value: bson.D{
			{Key: "current", Value: open}, {Key: "available", Value: max(0, maxConns-open)}, {Key: "totalCreated", Value: s.created.Load()},
			{Key: "rejected", Value: s.rejected.Load()}, {Key: "active", Value: r.activeConns()}}},
		{Key: "network", Value: bson.D{{Key: "bytesIn", Value: s.bytesIn.Load()}, {Key: "bytesOut", Value: s.bytesOut.Load()},
			{Key: "numRequests", Value: s.requests()}}},
		{Key: "opcounters", Value: bson.D{{Key: "insert", Value: s.inserts.Load() + s.moreInserts.Load()}, {Key: "query", Value: s.queries.Load()},
			{Key: "update", Value: s.updates.Load() + s.moreUpdates.Load()}, {Key: "delete", Value: s.deletes.Load() + s.moreDeletes.Load()},
			{Key: "getmore", Value: s.getmores.Load()}, {Key: "command", Value: s.commands.Load()}}},
		{Key: "logicalSessionRecordCache", Value: bson.D{{Key: "activeSessionsCount", Value: int64(len(r.derived.clients()))}}},
		{Key: "mem", Value: bson.D{{Key: "bits", Value: int32(64)}, {Key: "resident", Value: int64(mem.Sys-mem.HeapReleased) >> 20}, {Key: "supported", Value: true}}},
		{Key: "metrics", Value: bson.D{
			{Key: "cursor", Value: bson.D{{Key: "open", Value: bson.D{{Key: "total", Value: int64(r.cursors.count())}}}}},
			{Key: "commands", Value: bson.D{{Key: "failed", Value: s.failed.Load()}, {Key: "failedUnacknowledged", Value: s.swallowed.Load()}}},
		}},
		{Key: "sharding", Value: r.shardingStatus()},
		{Key: "shardingStatistics", Value: r.shardingStatistics()},
		{Key: "transactions", Value: r.transactionStatus()},
		{Key: "shardway", Value: bson.D{{Key: "version", Value: buildVersion()}, {Key: "program", Value: filepath.Base(os.Args[0])},
			{Key: "goroutines", Value: int32(runtime.NumGoroutine())}, {Key: "draining", Value: r.topologyCounter() > 0},
			{Key: "retryableWrites", Value: bson.D{{Key: "refusedUnasked", Value: r.unanswered.passing.Load()},
				{Key: "refusedByBackend", Value: r.unanswered.refused.Load()}, {Key: "refusedTooManySessions", Value: r.crowded.refused.Load()},
				{Key: "sessions", Value: r.sessionsByBackend()}}}}},
	}
}

// sessionsByBackend is how many sessions of this proxy's each backend may hold.
func (r *Router) sessionsByBackend() bson.D {
	counts, d := r.derived.liveCounts(), bson.D{}
	for _, id := range slices.Sorted(maps.Keys(counts)) {
		d = append(d, bson.E{Key: id, Value: int64(counts[id])})
	}
	return d
}

func (r *Router) shardingStatus() bson.D {
	d := bson.D{}
	if b := r.cfg.Backends.Get(r.cfg.CatalogBackend); b != nil {
		d = append(d, bson.E{Key: "configsvrConnectionString", Value: b.HostString()})
	}
	if r.cfg.Reshaper != nil {
		d = append(d, bson.E{Key: "maxChunkSizeInBytes", Value: r.cfg.Reshaper.MaxPartitionBytes("")})
	}
	return d
}

// connPoolStats shows the connections to each backend.
func (r *Router) connPoolStats(context.Context, *Request) (Reply, error) {
	var used, idle, created, waiting int64
	hosts, sets := bson.D{}, bson.D{}
	for _, b := range r.cfg.Backends.All() {
		s := b.Stats()
		used += int64(s.Open - s.Idle)
		idle += int64(s.Idle)
		created += s.Created
		waiting += s.Waiting
		hosts = append(hosts, bson.E{Key: b.HostString(), Value: bson.D{
			{Key: "backend", Value: b.ID()}, {Key: "inUse", Value: int64(s.Open - s.Idle)}, {Key: "available", Value: int64(s.Idle)},
			{Key: "created", Value: s.Created}, {Key: "closed", Value: s.Closed}, {Key: "waiting", Value: s.Waiting},
			{Key: "waited", Value: s.Waited}, {Key: "waitMillis", Value: s.WaitTime.Milliseconds()},
			{Key: "dialFailures", Value: s.DialFailures}, {Key: "lost", Value: s.Lost},
		}})
		members := bson.A{}
		_, addresses, isSet := strings.Cut(b.HostString(), "/")
		for _, addr := range strings.Split(addresses, ",") {
			members = append(members, bson.D{{Key: "addr", Value: addr}})
		}
		if isSet { // sets of different backends may have one name
			sets = append(sets, bson.E{Key: b.ID(), Value: bson.D{{Key: "hosts", Value: members}}})
		}
	}
	return docReply(bson.D{
		{Key: "numClientConnections", Value: r.stats.connections.Load()},
		{Key: "numAScopedConnections", Value: int32(0)},
		{Key: "totalInUse", Value: used},
		{Key: "totalAvailable", Value: idle},
		{Key: "totalLeased", Value: int64(0)},
		{Key: "totalCreated", Value: created},
		{Key: "totalRefreshing", Value: int64(0)},
		{Key: "totalWaiting", Value: waiting},
		{Key: "replicaSetMatchingStrategy", Value: "matchPrimaryNode"},
		{Key: "pools", Value: bson.D{{Key: "shardway", Value: bson.D{
			{Key: "poolInUse", Value: used}, {Key: "poolAvailable", Value: idle}, {Key: "poolCreated", Value: created}, {Key: "poolRefreshing", Value: int64(0)},
		}}}},
		{Key: "hosts", Value: hosts},
		{Key: "replicaSets", Value: sets},
	})
}
