package router

import (
	"context"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/partition"
)

// What is remembered for repeated writes is bounded: the sessions and the bytes of replies.
const (
	maxRetrySessions = 50_000
	maxRetryBytes    = 64 << 20
)

// retryMemory is what this process remembers of retryable writes by session: for standalones, which take no txnNumber, the results (the ledger); for writes
// without the key, which document was chosen. It ends with the process. Its zero value is ready for use.
type retryMemory struct {
	mu    sync.Mutex
	by    map[sessionKey]*retryRecord
	bytes int
}

// retryRecord is what is remembered of one session: only the newest transaction number counts, as on a server.
type retryRecord struct {
	// busy is held while a statement of the session runs on a standalone, so that a repetition waits for its answer.
	busy sync.Mutex
	// searching is held, being full, while a write of the session looks for its document and is applied: a repetition that overtook it would choose another one.
	searching chan struct{}

	// The rest is guarded by retryMemory.mu.
	txn     int64
	results map[int32]ledgerEntry
	choices map[int32]choice
	times   map[int32]bson.Timestamp
	bytes   int
	dropped bool // from the memory; what is added then is not counted
}

// ledgerEntry is the result of one statement on a standalone.
type ledgerEntry struct {
	n, modified int64
	upserted    bson.RawValue // its zero value when nothing was
	reply       bson.Raw      // a findAndModify's
}

// choice is the document that a write without the key was given, or where its upsert went.
type choice struct {
	home   partition.Home
	id     bson.RawValue
	upsert bool
	// key is the shard key value there, for an update that must not change it.
	key bson.RawValue
}

// record returns the session's record, opened for a transaction number: an older number than the newest is 225 TransactionTooOld, a newer one starts afresh.
func (m *retryMemory) record(id sessionKey, txn int64) (*retryRecord, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.by[id]
	if rec == nil {
		if m.by == nil {
			m.by = map[sessionKey]*retryRecord{}
		}
		for old := range m.by {
			if len(m.by) < maxRetrySessions && m.bytes < maxRetryBytes {
				break
			}
			m.dropLocked(old)
		}
		rec = &retryRecord{txn: txn, searching: make(chan struct{}, 1)}
		m.by[id] = rec
	}
	switch {
	case txn < rec.txn:
		return nil, tooOld(txn, rec.txn)
	case txn > rec.txn:
		m.bytes -= rec.bytes
		rec.txn, rec.results, rec.choices, rec.times, rec.bytes = txn, nil, nil, nil, 0
	}
	return rec, nil
}

// search waits until no other write of the session looks for its document, and keeps others waiting until done is called.
func (rec *retryRecord) search(ctx context.Context) (done func(), err error) {
	select {
	case rec.searching <- struct{}{}:
		return func() { <-rec.searching }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (m *retryMemory) dropLocked(id sessionKey) {
	if rec := m.by[id]; rec != nil {
		m.bytes -= rec.bytes
		rec.bytes, rec.dropped = 0, true
		delete(m.by, id)
	}
}

// forget drops what is remembered of a session.
func (m *retryMemory) forget(id sessionKey) {
	m.mu.Lock()
	m.dropLocked(id)
	m.mu.Unlock()
}

// result returns what a statement of the record's transaction number has given.
func (m *retryMemory) result(rec *retryRecord, txn int64, stmt int32) (ledgerEntry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := rec.results[stmt]
	return e, ok && rec.txn == txn
}

// setResult remembers what a statement has given. It keeps copies.
func (m *retryMemory) setResult(rec *retryRecord, txn int64, stmt int32, e ledgerEntry) {
	e.reply = append(bson.Raw(nil), e.reply...)
	e.upserted.Value = append([]byte(nil), e.upserted.Value...)
	m.mu.Lock()
	defer m.mu.Unlock()
	if rec.txn != txn {
		return
	}
	if rec.results == nil {
		rec.results = map[int32]ledgerEntry{}
	}
	rec.results[stmt] = e
	m.growLocked(rec, 64+len(e.reply)+len(e.upserted.Value))
}

// choice returns the document that was chosen for a statement.
func (m *retryMemory) choice(rec *retryRecord, txn int64, stmt int32) (choice, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := rec.choices[stmt]
	return c, ok && rec.txn == txn
}

// setChoice remembers the document that was chosen for a statement. It keeps a copy.
func (m *retryMemory) setChoice(rec *retryRecord, txn int64, stmt int32, c choice) {
	c.id.Value = append([]byte(nil), c.id.Value...)
	m.mu.Lock()
	defer m.mu.Unlock()
	if rec.txn != txn {
		return
	}
	if rec.choices == nil {
		rec.choices = map[int32]choice{}
	}
	rec.choices[stmt] = c
	m.growLocked(rec, 128+len(c.id.Value))
}

// time returns the time that a statement's document was given, or gives it the one that next makes.
func (m *retryMemory) time(rec *retryRecord, txn int64, stmt int32, next func() bson.Timestamp) bson.Timestamp {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at, ok := rec.times[stmt]; ok && rec.txn == txn {
		return at
	}
	at := next()
	if rec.txn != txn {
		return at
	}
	if rec.times == nil {
		rec.times = map[int32]bson.Timestamp{}
	}
	rec.times[stmt] = at
	m.growLocked(rec, 64)
	return at
}

// growLocked counts what a record keeps; one that has been dropped meanwhile is counted no more.
func (m *retryMemory) growLocked(rec *retryRecord, n int) {
	if !rec.dropped {
		rec.bytes += n
		m.bytes += n
	}
}
