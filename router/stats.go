package router

import "sync/atomic"

// stats are the counters that serverStatus shows.
type stats struct {
	// connections are open now; created and rejected count since the start.
	connections, created, rejected atomic.Int64
	bytesIn, bytesOut              atomic.Int64
	// failed counts commands that ended in an error, swallowed those of them that nobody was told of.
	failed, swallowed atomic.Int64

	inserts  atomic.Int64
	queries  atomic.Int64
	updates  atomic.Int64
	deletes  atomic.Int64
	getmores atomic.Int64
	commands atomic.Int64
	// moreInserts and its like count the documents and statements of batches beyond their first: opcounters count each.
	moreInserts, moreUpdates, moreDeletes atomic.Int64

	toFind, toInsert, toUpdate, toDelete, toAggregate targeted
}

func (s *stats) count(c *Command) {
	switch c.Name {
	case "insert":
		s.inserts.Add(1)
	case "find":
		s.queries.Add(1)
	case "update":
		s.updates.Add(1)
	case "delete":
		s.deletes.Add(1)
	case "getMore":
		s.getmores.Add(1)
	default:
		s.commands.Add(1)
	}
}

// requests is the number of commands that were run.
func (s *stats) requests() int64 {
	return s.inserts.Load() + s.queries.Load() + s.updates.Load() + s.deletes.Load() + s.getmores.Load() + s.commands.Load()
}
