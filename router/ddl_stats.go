package router

import (
	"context"
	"errors"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

var _ = register(statsCommands)

func statsCommands(r *Router) []Command {
	return []Command{
		{Name: "collStats", Aliases: []string{"collstats"}, Help: "sizes and counts of a collection", Run: r.collStats},
		{Name: "dbStats", Aliases: []string{"dbstats"}, API1: true, Help: "sizes and counts of a database", Run: r.dbStats},
		{Name: "dataSize", Aliases: []string{"datasize"}, Help: "size of a collection, or of some partitions of it", Run: r.dataSize},
		{Name: "validate", Writes: true, Help: "checks a collection's storage on every backend", Run: r.validate},
	}
}

// tally sums BSON numbers, keeping the narrowest type that holds what was added, as the server does.
type tally struct {
	i      int64
	f      float64
	double bool
}

func (n *tally) add(v bsoncore.Value) bool {
	switch v.Type {
	case bsoncore.TypeInt32, bsoncore.TypeInt64:
		n.i += v.AsInt64()
	case bsoncore.TypeDouble:
		n.f += v.Double()
		n.double = true
	default:
		return false
	}
	return true
}

func (n *tally) float() float64 { return n.f + float64(n.i) }

func (n *tally) append(dst []byte, name string) []byte {
	switch {
	case n.double:
		return bsoncore.AppendDoubleElement(dst, name, n.float())
	case n.i >= math.MinInt32 && n.i <= math.MaxInt32:
		return bsoncore.AppendInt32Element(dst, name, int32(n.i))
	}
	return bsoncore.AppendInt64Element(dst, name, n.i)
}

// sums adds up named numbers in the order in which the names first came.
type sums struct {
	names []string
	of    map[string]*tally
}

func (s *sums) add(name string, v bsoncore.Value) {
	if s.of == nil {
		s.of = map[string]*tally{}
	}
	n := s.of[name]
	if n == nil {
		n = &tally{}
		if !n.add(v) {
			return
		}
		s.of[name] = n
		s.names = append(s.names, name)
		return
	}
	n.add(v)
}

func (s *sums) float(name string) float64 {
	if n := s.of[name]; n != nil {
		return n.float()
	}
	return 0
}

func (s *sums) appendAll(dst []byte) []byte {
	for _, name := range s.names {
		dst = s.of[name].append(dst, name)
	}
	return dst
}

func (s *sums) addDocument(d bsoncore.Document) {
	elems, _ := d.Elements()
	for _, e := range elems {
		s.add(e.Key(), e.Value())
	}
}

// collTotals merges collStats of several partitions.
type collTotals struct {
	counts     sums // what is summed
	indexSizes sums
	first      bsoncore.Document
	nindexes   int32
	differ     bool
}

func (t *collTotals) add(reply bson.Raw) {
	d := bsoncore.Document(reply)
	if t.first == nil {
		t.first = d
	}
	for _, name := range []string{"count", "size", "storageSize", "freeStorageSize", "totalIndexSize", "totalSize", "numOrphanDocs"} {
		if v, err := d.LookupErr(name); err == nil {
			t.counts.add(name, v)
		}
	}
	if v, ok := d.Lookup("indexSizes").DocumentOK(); ok {
		t.indexSizes.addDocument(v)
	}
	if n, ok := d.Lookup("nindexes").AsInt64OK(); ok {
		t.differ = t.differ || t.nindexes != 0 && t.nindexes != int32(n)
		t.nindexes = max(t.nindexes, int32(n))
	}
}

// appendTo appends the merged fields; those that cannot be merged are the first partition's.
func (t *collTotals) appendTo(dst []byte) []byte {
	for _, name := range []string{"capped", "wiredTiger", "indexDetails", "max", "maxSize", "scaleFactor"} {
		if v, err := t.first.LookupErr(name); err == nil {
			dst = bsoncore.AppendValueElement(dst, name, v)
		}
	}
	dst = t.counts.appendAll(dst)
	if count := t.counts.float("count"); count > 0 {
		dst = bsoncore.AppendDoubleElement(dst, "avgObjSize", t.counts.float("size")/count*t.scale())
	}
	dst = bsoncore.AppendDocumentElement(dst, "indexSizes", bsoncore.BuildDocument(nil, t.indexSizes.appendAll(nil)))
	dst = bsoncore.AppendInt32Element(dst, "nindexes", t.nindexes)
	if t.differ {
		dst = bsoncore.AppendStringElement(dst, "warning", "indexes don't all match - ok if ensureIndex is running")
	}
	return dst
}

// scale undoes the scale of size for avgObjSize, which is in bytes always.
func (t *collTotals) scale() float64 {
	if n, ok := t.first.Lookup("scaleFactor").AsFloat64OK(); ok && n > 0 {
		return n
	}
	return 1
}

// collStats sums over the partitions (mongos-behaviour §7.3). Partitions on one backend are one entry of shards.
func (r *Router) collStats(ctx context.Context, q *Request) (Reply, error) {
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	if v, err := bsoncore.Document(q.Msg.Body).LookupErr("scale"); err == nil {
		if f, ok := v.AsFloat64OK(); !ok {
			return Reply{}, wire.Errorf(4390200, "scale has to be a number > 0")
		} else if f < 1 {
			return Reply{}, wire.Errorf(4390201, "scale has to be a number >= 1")
		}
	}
	var reply Reply
	err = r.withinAny(ctx, ns, partition.Read, allParts, func(c *partition.Collection, parts []*partition.Part) error {
		if len(parts) == 0 {
			return errUnknownDB
		}
		results := r.fan(ctx, q, parts, nil, nil)
		if err := fanError(results, 0); err != nil {
			return err
		}
		reply.Body = mergeCollStats(c, results)
		return nil
	})
	if errors.Is(err, errUnknownDB) {
		return Reply{Body: emptyCollStats(ns)}, nil
	}
	return reply, err
}

func mergeCollStats(c *partition.Collection, results []partReply) bson.Raw {
	var all collTotals
	perBackend := map[string]*collTotals{}
	var order []string
	for _, res := range results {
		all.add(res.body)
		id := res.part.Backend
		if perBackend[id] == nil {
			perBackend[id] = &collTotals{}
			order = append(order, id)
		}
		perBackend[id].add(res.body)
	}
	start, dst := bsoncore.AppendDocumentStart(nil)
	dst = bsoncore.AppendStringElement(dst, "ns", c.NS)
	dst = bsoncore.AppendBooleanElement(dst, "sharded", c.Sharded())
	if !c.Sharded() {
		dst = bsoncore.AppendStringElement(dst, "primary", c.Parts[0].Backend)
	}
	dst = all.appendTo(dst)
	if c.Sharded() {
		dst = bsoncore.AppendInt32Element(dst, "nchunks", int32(len(c.Parts)))
	}
	at, dst := bsoncore.AppendDocumentElementStart(dst, "shards")
	for _, id := range order {
		one, d := bsoncore.AppendDocumentElementStart(dst, id)
		d = bsoncore.AppendStringElement(d, "ns", c.NS)
		d = perBackend[id].appendTo(d)
		d = bsoncore.AppendDoubleElement(d, "ok", 1)
		dst, _ = bsoncore.AppendDocumentEnd(d, one)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	dst = bsoncore.AppendDoubleElement(dst, "ok", 1)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// emptyCollStats is what a server says of a collection that does not exist.
func emptyCollStats(ns string) bson.Raw {
	d := bsoncore.AppendStringElement(nil, "ns", ns)
	d = bsoncore.AppendBooleanElement(d, "sharded", false)
	for _, name := range []string{"count", "size", "storageSize", "totalIndexSize", "totalSize", "nindexes"} {
		d = bsoncore.AppendInt32Element(d, name, 0)
	}
	d = bsoncore.AppendDocumentElement(d, "indexSizes", bsoncore.BuildDocument(nil, nil))
	d = bsoncore.AppendInt32Element(d, "scaleFactor", 1)
	return bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(d, "ok", 1)))
}

// countCollections counts the collections of a database, whatever partitions they have, without views.
func (r *Router) countCollections(ctx context.Context, db string) (n int64, err error) {
	d, err := r.database(ctx, db)
	if err != nil || d == nil {
		return 0, err
	}
	infos, err := r.collectionInfos(ctx, db, d.Primary)
	for _, info := range infos {
		if kind, _ := info.Lookup("type").StringValueOK(); kind != "view" {
			n++
		}
	}
	return n, err
}

// dbStats sums over the whole fleet. Indexes are counted on every backend, as mongos does; a collection counts once, as its partitions are nobody's affair.
func (r *Router) dbStats(ctx context.Context, q *Request) (Reply, error) {
	collections, err := r.countCollections(ctx, q.DB)
	if err != nil {
		return Reply{}, err
	}
	cmd := bson.D{{Key: "dbStats", Value: 1}}
	elems, _ := q.Msg.Body.Elements()
	for _, e := range elems[1:] {
		if key := e.Key(); key == "scale" || key == "freeStorage" {
			cmd = append(cmd, bson.E{Key: key, Value: e.Value()})
		}
	}
	var total sums
	var scale bsoncore.Value
	start, dst := bsoncore.AppendDocumentStart(nil)
	at, dst := bsoncore.AppendDocumentElementStart(dst, "raw")
	for _, b := range r.cfg.Backends.All() {
		reply, _, err := r.askHost(ctx, target{Backend: b.ID(), ReadPref: q.ReadPref}, q.DB, cmd)
		if err != nil {
			return Reply{}, err
		}
		reply = relay(reply)
		dst = bsoncore.AppendDocumentElement(dst, b.HostString(), bsoncore.Document(reply))
		elems, _ := bsoncore.Document(reply).Elements()
		for _, e := range elems {
			switch key := e.Key(); key {
			case "ok", "avgObjSize", "db":
			case "collections":
				if total.of[key] == nil {
					total.add(key, bsoncore.Value{Type: bsoncore.TypeInt64, Data: bsoncore.AppendInt64(nil, collections)})
				}
			case "scaleFactor":
				scale = e.Value()
			default:
				total.add(key, e.Value())
			}
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	dst = bsoncore.AppendStringElement(dst, "db", q.DB)
	avg := 0.0
	factor := 1.0
	if f, ok := scale.AsFloat64OK(); ok && f > 0 {
		factor = f
	}
	if n := total.float("objects"); n > 0 {
		avg = total.float("dataSize") * factor / n
	}
	for _, name := range total.names {
		dst = total.of[name].append(dst, name)
		if name == "objects" {
			dst = bsoncore.AppendDoubleElement(dst, "avgObjSize", avg)
		}
	}
	if scale.Type != 0 {
		dst = bsoncore.AppendValueElement(dst, "scaleFactor", scale)
	}
	dst = bsoncore.AppendDoubleElement(dst, "ok", 1)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return Reply{Body: dst}, nil
}

// dataSize sums over the partitions, or over those between min and max, which must be bounds of partitions: positions are the
// proxy's own, and no backend knows them.
func (r *Router) dataSize(ctx context.Context, q *Request) (Reply, error) {
	ns, err := namespaceField(q.First, "dataSize")
	if err != nil {
		return Reply{}, err
	}
	if db, _ := catalog.SplitNS(ns); db != q.DB {
		return Reply{}, wire.Errorf(wire.InvalidNamespace, "dataSize of '%s' may not be asked of database '%s'", ns, q.DB)
	}
	var total sums
	err = r.withinAny(ctx, ns, partition.Read, func(c *partition.Collection) ([]*partition.Part, error) {
		if c == nil {
			return nil, errUnknownDB
		}
		return dataSizeParts(q, c)
	}, func(c *partition.Collection, parts []*partition.Part) error {
		results := r.fanBodies(ctx, q, parts, func(p *partition.Part) []byte { return dataSizeBody(q, c, p) })
		if err := fanError(results, 0); err != nil {
			return err
		}
		for _, res := range results {
			total.addDocument(bsoncore.Document(res.body))
		}
		return nil
	})
	if err != nil && !errors.Is(err, errUnknownDB) {
		return Reply{}, err
	}
	var dst []byte
	for _, name := range []string{"size", "numObjects", "millis"} {
		n := total.of[name]
		if n == nil {
			n = &tally{}
		}
		dst = n.append(dst, name)
	}
	return Reply{Body: bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(dst, "ok", 1)))}, nil
}

// dataSizeBody is the request as a partition's backend must see it: it names the namespace whole, and the bounds of a sharded
// collection have been used up in choosing the partitions.
func dataSizeBody(q *Request, c *partition.Collection, p *partition.Part) []byte {
	start, dst := bsoncore.AppendDocumentStart(nil)
	dst = bsoncore.AppendStringElement(dst, "dataSize", p.DB+"."+p.Physical)
	for _, name := range []string{"keyPattern", "min", "max", "estimate"} {
		if v, err := bsoncore.Document(q.Msg.Body).LookupErr(name); err == nil && (!c.Sharded() || name == "estimate") {
			dst = bsoncore.AppendValueElement(dst, name, v)
		}
	}
	return closeDocument(q.appendTail(dst, p.DB), int(start))
}

// dataSizeParts chooses the partitions between the request's min and max.
func dataSizeParts(q *Request, c *partition.Collection) ([]*partition.Part, error) {
	lower, okMin := q.Msg.Body.Lookup("min").DocumentOK()
	upper, okMax := q.Msg.Body.Lookup("max").DocumentOK()
	if !c.Sharded() || !okMin && !okMax {
		return c.Parts, nil
	}
	field := c.Key.Fields()[0]
	lo, _, ok1 := shardkey.ParseBound(lower.Lookup(field))
	hi, end, ok2 := shardkey.ParseBound(upper.Lookup(field))
	if !ok1 || !ok2 {
		return nil, wire.Errorf(wire.InvalidOptions, "min and max must be bounds of chunks of '%s'", c.NS)
	}
	var parts []*partition.Part
	loSeen, hiSeen := false, false
	for _, p := range c.Parts {
		inside := p.Range.Lo >= lo && (end || p.Range.Lo < hi)
		loSeen = loSeen || p.Range.Lo == lo
		hiSeen = hiSeen || p.Range.Hi == hi && (hi != 0 || end)
		if inside {
			parts = append(parts, p)
		}
	}
	if !loSeen || !hiSeen {
		return nil, wire.Errorf(wire.InvalidOptions, "min and max must be bounds of chunks of '%s'", c.NS)
	}
	return parts, nil
}

// validate runs on every partition: {raw: {<shard>: reply or {error}}, valid, ok}; partitions on one backend share an entry.
func (r *Router) validate(ctx context.Context, q *Request) (Reply, error) {
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	var reply Reply
	err = r.withinAny(ctx, ns, partition.Read, allParts, func(c *partition.Collection, parts []*partition.Part) error {
		if len(parts) == 0 {
			return errNoCollection(ns)
		}
		var err error
		reply, err = mergeValidate(c, r.fan(ctx, q, parts, nil, nil))
		return err
	})
	if errors.Is(err, errUnknownDB) {
		err = errNoCollection(ns)
	}
	return reply, err
}

func mergeValidate(c *partition.Collection, results []partReply) (Reply, error) {
	valid := true
	var failed error
	byBackend := map[string][]partReply{}
	var order []string
	for _, res := range results {
		id := res.part.Backend
		if byBackend[id] == nil {
			order = append(order, id)
		}
		byBackend[id] = append(byBackend[id], res)
		switch {
		case res.err != nil && failed == nil:
			failed = res.err
		case res.err == nil && !boolField(res.body, "valid"):
			valid = false
		}
	}
	at, raw := bsoncore.AppendDocumentElementStart(nil, "raw")
	for _, id := range order {
		raw = bsoncore.AppendDocumentElement(raw, id, validateEntry(c, byBackend[id]))
	}
	raw, _ = bsoncore.AppendDocumentEnd(raw, at)
	if failed != nil {
		e := *wire.AsError(failed)
		e.Extra = bson.Raw(bsoncore.BuildDocument(nil, raw))
		return Reply{}, &e
	}
	raw = bsoncore.AppendBooleanElement(raw, "valid", valid)
	return Reply{Body: bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(raw, "ok", 1)))}, nil
}

// validateEntry merges what one backend said of its partitions: numbers are summed, an invalid partition's texts win.
func validateEntry(c *partition.Collection, results []partReply) []byte {
	var total, keys sums
	pick := results[0]
	for _, res := range results {
		if res.err != nil {
			return bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "error", wire.AppendErrorReply(nil, res.err)))
		}
		if boolField(pick.body, "valid") && !boolField(res.body, "valid") {
			pick = res
		}
		elems, _ := bsoncore.Document(res.body).Elements()
		for _, e := range elems {
			if key := e.Key(); key != "nIndexes" && key != "ok" {
				total.add(key, e.Value())
			}
		}
		if d, ok := res.body.Lookup("keysPerIndex").DocumentOK(); ok {
			keys.addDocument(bsoncore.Document(d))
		}
	}
	start, dst := bsoncore.AppendDocumentStart(nil)
	elems, _ := bsoncore.Document(pick.body).Elements()
	for _, e := range elems {
		switch key := e.Key(); {
		case key == "ns":
			dst = bsoncore.AppendStringElement(dst, key, c.NS)
		case key == "uuid":
		case key == "keysPerIndex":
			dst = bsoncore.AppendDocumentElement(dst, key, bsoncore.BuildDocument(nil, keys.appendAll(nil)))
		case total.of[key] != nil:
			dst = total.of[key].append(dst, key)
		default:
			dst = bsoncore.AppendValueElement(dst, key, hideIn(e.Value()))
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}
