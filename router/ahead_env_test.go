package router

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/internal/waits"
)

// scanEnv is a writeEnv over three scripted servers that answer scans of collection c, of some partitions with so many documents each.
type scanEnv struct {
	*writeEnv
	servers []*backendtest.Server
	parts   int
	docs    int32 // of each partition
	pad     string

	group int32 // documents of a partition in a row whose field s is equal; 0: all are

	mu      sync.Mutex
	left    map[int64][]int32 // the documents of each backend cursor that were not returned yet
	asked   []int64           // the cursor of each getMore, in the order of their coming
	batches map[int32]int     // how many documents each batch had for a getMore, by the first one's _id
	killed  map[int64]bool
	session map[string]bool // the sessions that getMores carried
	lastID  int64

	// answer, if not nil, may answer the n-th getMore of a partition (from 1) in its own way; nil leaves it to the server.
	answer func(partition, n int) *backendtest.Answer
	times  map[int]int
}

func newScanEnv(t *testing.T, parts int, docs int32, pad int) *scanEnv {
	t.Helper()
	e := &scanEnv{parts: parts, docs: docs, pad: strings.Repeat("x", pad), left: map[int64][]int32{}, batches: map[int32]int{}, killed: map[int64]bool{}, session: map[string]bool{}, times: map[int]int{}}
	e.writeEnv, e.servers = scriptEnv(t)
	e.shard("c", "_id", parts)
	for _, s := range e.servers {
		s.SetScript(e.script)
	}
	return e
}

// The cursor ids of a partition have its number in their last three digits.
const scanIDs = 1000

func (e *scanEnv) script(c backendtest.Command) backendtest.Answer {
	switch c.Name {
	case "find", "aggregate":
		p := e.number(c.Body.Lookup(c.Name).StringValue())
		var ids []int32
		for i := range e.docs {
			ids = append(ids, i*int32(e.parts)+int32(p)) // so that a merge has them in turn
		}
		e.mu.Lock()
		e.lastID++
		id := e.lastID*scanIDs + int64(p)
		e.left[id] = ids
		e.mu.Unlock()
		n, ok := c.Body.Lookup("batchSize").AsInt64OK()
		if !ok {
			n = firstBatch
		}
		return e.batch(id, "firstBatch", n)
	case "getMore":
		id := c.Body.Lookup("getMore").Int64()
		size, _ := c.Body.Lookup("batchSize").AsInt64OK()
		p := int(id % scanIDs)
		e.mu.Lock()
		e.asked = append(e.asked, id)
		e.times[p]++
		n, answer := e.times[p], e.answer
		if lsid, ok := c.Body.Lookup("lsid").DocumentOK(); ok {
			e.session[lsid.String()] = true
		}
		e.mu.Unlock()
		if answer != nil {
			if a := answer(p, n); a != nil {
				return *a
			}
		}
		return e.batch(id, "nextBatch", size)
	case "killCursors":
		for _, v := range must(c.Body.Lookup("cursors").Array().Values()) {
			e.mu.Lock()
			e.killed[v.Int64()] = true
			e.mu.Unlock()
		}
	}
	return backendtest.OK()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// number is the number of a physical collection's partition.
func (e *scanEnv) number(physical string) int {
	return slices.IndexFunc(e.partList(), func(name string) bool { return name == physical })
}

func (e *scanEnv) partList() (names []string) {
	for _, p := range e.table.View().Collection(e.db + ".c").Parts {
		names = append(names, p.Physical)
	}
	return names
}

// batch takes n documents, 0 for all, off a cursor.
func (e *scanEnv) batch(id int64, field string, n int64) backendtest.Answer {
	e.mu.Lock()
	defer e.mu.Unlock()
	left := e.left[id]
	if n == 0 || n > int64(len(left)) {
		n = int64(len(left))
	}
	docs := bson.A{}
	for _, i := range left[:n] {
		s := int32(0)
		if e.group > 0 {
			s = i / int32(e.parts) / e.group
		}
		docs = append(docs, d("_id", i, "s", s, "pad", e.pad))
	}
	if field == "nextBatch" && n > 0 {
		e.batches[left[0]] = int(n)
	}
	e.left[id] = left[n:]
	if len(left) == int(n) {
		id = 0
	}
	return backendtest.OK(bson.E{Key: "cursor", Value: d(field, docs, "id", id, "ns", "x.y")})
}

// getMores is how many getMores have come, of all partitions or of one.
func (e *scanEnv) getMores(of ...int) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range e.asked {
		if len(of) == 0 || slices.Contains(of, int(id%scanIDs)) {
			n++
		}
	}
	return n
}

// setAnswer sets answer.
func (e *scanEnv) setAnswer(f func(partition, n int) *backendtest.Answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = f
}

// kills is how many cursors were killed, sessions how many different ones getMores came in.
func (e *scanEnv) kills() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.killed)
}

func (e *scanEnv) sessions() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.session)
}

// isBatch reports whether ids are those of one batch of a backend.
func (e *scanEnv) isBatch(ids []int32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.batches[ids[0]] == len(ids)
}

// cursor runs a command and returns its cursor's id and the _ids of its batch.
func (e *scanEnv) cursor(cmd bson.D) (id int64, ids []int32, err error) {
	e.t.Helper()
	reply, err := e.raw(cmd)
	if err != nil {
		return 0, nil, err
	}
	cur, _ := reply["cursor"].(bson.D)
	for _, el := range cur {
		switch el.Key {
		case "id":
			id = el.Value.(int64)
		case "firstBatch", "nextBatch":
			for _, doc := range el.Value.(bson.A) {
				ids = append(ids, valueOf(doc, "_id").(int32))
			}
		}
	}
	return id, ids, nil
}

// more sends a getMore; batchSize 0 leaves it out.
func (e *scanEnv) more(id int64, batchSize int, more ...bson.E) (int64, []int32, error) {
	e.t.Helper()
	cmd := append(d("getMore", id, "collection", "c"), more...)
	if batchSize > 0 {
		cmd = append(cmd, bson.E{Key: "batchSize", Value: batchSize})
	}
	return e.cursor(cmd)
}

// complete checks that ids are those of the whole collection, each once, and in order if that is asked for.
func (e *scanEnv) complete(ids []int32, sorted bool) {
	e.t.Helper()
	if !sorted {
		slices.Sort(ids)
	}
	for i, id := range ids {
		if id != int32(i) {
			e.t.Fatalf("document %d of the scan is %d", i, id)
		}
	}
	if want := int(e.docs) * e.parts; len(ids) != want {
		e.t.Fatalf("%d documents, not %d", len(ids), want)
	}
}

// eventually waits until something is so.
func (e *scanEnv) eventually(what string, so func() bool) {
	e.t.Helper()
	waits.Until(e.t, what, so)
}

// quiet waits until no fetch is under way and no bytes are ahead, no backend connection is used and no gate is held.
func (e *scanEnv) quiet() {
	e.t.Helper()
	e.eventually("nothing is ahead any more", func() bool { return e.router.ahead.used.Load() == 0 })
	e.eventually("all gates are released", func() bool { return e.held() == 0 })
	e.eventually("no connection is used", func() bool { return e.inUse() == 0 })
}

// held is how many holds there are on the gates of the collection.
func (e *scanEnv) held() (n int) {
	for _, p := range e.table.View().Collection(e.db + ".c").Parts {
		n += p.Gate().Held()
	}
	return n
}

// landed waits until no fetch is under way.
func (e *scanEnv) landed() {
	e.t.Helper()
	e.eventually("what is ahead has come", func() bool { return e.router.ahead.used.Load() < maxReply })
}

// inUse is how many connections to backends have a request.
func (e *scanEnv) inUse() (n int) {
	for _, b := range e.router.cfg.Backends.All() {
		s := b.Stats()
		n += s.Open - s.Idle
	}
	return n
}
