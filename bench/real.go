package main

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/fleet"
)

// real measures before real servers: the same clients connected directly and through the proxy.
func (b *bench) real(ctx context.Context) error {
	if err := b.realPoints(ctx); err != nil {
		return err
	}
	return b.realBulk(ctx)
}

func hostOf(s *fleet.Server) string {
	u, err := url.Parse(s.URI())
	if err != nil {
		return ""
	}
	return u.Host
}

// patience is how long a sample is at least for each client, so that every one of them has its turn several times.
const patience = 3 * time.Millisecond

// realPoints compares finds and inserts of one document on one server.
func (b *bench) realPoints(ctx context.Context) error {
	finds := []struct {
		conns int
		least float64
	}{{1, 0}, {16, 0.85}, {64, 1}, {256, 1.4}, {1000, 2}}
	inserts := []struct {
		conns int
		least float64
	}{{64, 1}, {256, 1.4}}
	var names []string
	for _, f := range finds {
		names = append(names, fmt.Sprintf("server find %d", f.conns))
	}
	for _, f := range inserts {
		names = append(names, fmt.Sprintf("server insert %d", f.conns))
	}
	if !b.wants(append(names, "server driver 256")...) {
		return nil
	}
	servers, err := b.procs.servers(ctx, 1, "server")
	if err != nil {
		return err
	}
	direct := target{name: "direct", addr: hostOf(servers[0])}
	own, err := b.procs.shardway(ctx, map[string]string{"a": servers[0].URI()})
	if err != nil {
		return err
	}
	targets := []target{direct, own}
	hap, err := b.procs.haproxy(ctx, direct.addr)
	if missing, err := optional(err); err != nil {
		return err
	} else if !missing {
		targets = append(targets, hap)
	}
	// One partition that keeps the collection's name: what is direct finds the same documents.
	if err := b.fill(ctx, own.addr); err != nil {
		return err
	}
	for _, f := range finds {
		name := fmt.Sprintf("server find %d", f.conns)
		if !b.wants(name) {
			continue
		}
		rs, err := compare(targets, load{conns: f.conns, message: findFilled}, b.rounds, max(b.length, time.Duration(f.conns)*patience))
		if err != nil {
			return err
		}
		b.show(name, rs)
		d, o := rs["direct"], rs["shardway"]
		if f.conns == 1 {
			if hap.name == "" {
				b.skip(name+": p50 to HAProxy", errNotInstalled)
			} else {
				b.value(name+": p50 to HAProxy", float64(o.p50)/float64(rs["haproxy"].p50), 1.15, false, o.p50.Round(time.Microsecond).String())
			}
			continue
		}
		b.value(name+": ops/s to direct", o.rate/d.rate, f.least, true, fmt.Sprintf("%.0f ops/s", o.rate))
		if f.conns == 1000 {
			b.value(name+": p99 to direct", float64(o.p99)/float64(d.p99), 0.2, false, o.p99.Round(time.Microsecond).String())
		}
	}
	for _, f := range inserts {
		name := fmt.Sprintf("server insert %d", f.conns)
		if !b.wants(name) {
			continue
		}
		rs, err := compare(targets, load{conns: f.conns, message: newDocument}, b.rounds, max(b.length, time.Duration(f.conns)*patience))
		if err != nil {
			return err
		}
		b.show(name, rs)
		b.value(name+": ops/s to direct", rs["shardway"].rate/rs["direct"].rate, f.least, true, fmt.Sprintf("%.0f ops/s", rs["shardway"].rate))
	}
	return b.driver(ctx, direct.addr, own.addr)
}

// newDocument inserts one document without an _id, so that it can be sent again and again: the server makes one, as the proxy does.
func newDocument(i int) ([]byte, int) {
	doc := document(nil, stubKey(i))[1:]
	return message(append(bson.D{{Key: "insert", Value: "c"}, {Key: "ordered", Value: true}}, session()...), "documents", doc), 0
}

// filled is how many documents fill makes. Each has a key of its own, which none of newDocument's has: a server that finds by the key's index reads one document.
const filled = 1000

func filledKey(i int) int32 { return 1<<20 + int32(i) }

// findFilled is findMessage for a document of fill's.
func findFilled(i int) ([]byte, int) { return findBy(filledKey(i%filled), i%filled) }

// fill makes bench.c, a collection with the key k in one partition, and the documents that findFilled finds.
func (b *bench) fill(ctx context.Context, addr string) error {
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + addr + "/").SetTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = c.Disconnect(ctx) }()
	coll := c.Database("bench").Collection("c")
	docs := make([]any, filled)
	for i := range docs {
		docs[i] = document(i, filledKey(i))
	}
	if _, err := coll.InsertMany(ctx, docs); err != nil {
		return err
	}
	if _, err := coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}}); err != nil {
		return err
	}
	return c.Database("admin").RunCommand(ctx, bson.D{{Key: "shardCollection", Value: "bench.c"}, {Key: "key", Value: bson.D{{Key: "k", Value: "hashed"}}}}).Err()
}

// driver reports what the official driver reaches with 256 goroutines.
func (b *bench) driver(ctx context.Context, direct, own string) error {
	const name = "server driver 256"
	if !b.wants(name) {
		return nil
	}
	one := func(addr string) func() (float64, error) {
		return func() (float64, error) {
			c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + addr + "/?directConnection=true").SetMaxPoolSize(256))
			if err != nil {
				return 0, err
			}
			defer func() { _ = c.Disconnect(ctx) }()
			coll := c.Database("bench").Collection("c")
			var n atomic.Int64
			var failure atomic.Pointer[error]
			var wg sync.WaitGroup
			end := time.Now().Add(b.length)
			for i := range 256 {
				wg.Go(func() {
					for time.Now().Before(end) {
						if _, err := coll.FindOne(ctx, bson.D{{Key: "k", Value: filledKey(i)}, {Key: "_id", Value: i}}).Raw(); err != nil {
							failure.Store(&err)
							return
						}
						n.Add(1)
					}
				})
			}
			wg.Wait()
			if err := failure.Load(); err != nil {
				return 0, *err
			}
			return float64(n.Load()) / b.length.Seconds(), nil
		}
	}
	o, d, err := b.alternate(one(own), one(direct))
	if err != nil {
		return err
	}
	b.report(name+": finds to direct", o/d, fmt.Sprintf("%.0f ops/s", o))
	return nil
}

// realBulk measures a bulk load over three servers, and the copy of a partition from one to another.
func (b *bench) realBulk(ctx context.Context) error {
	if !b.wants(append(copyMeasures, "bulk load, 3 servers: to direct")...) {
		return nil
	}
	servers, err := b.procs.servers(ctx, 3, "bulk")
	if err != nil {
		return err
	}
	uris := map[string]string{}
	var addrs []string
	for i, s := range servers {
		uris[string(rune('a'+i))] = s.URI()
		addrs = append(addrs, hostOf(s))
	}
	own, err := b.procs.shardway(ctx, uris)
	if err != nil {
		return err
	}
	if err := shard(ctx, own.addr, "a", 9); err != nil {
		return err
	}
	const loaders = 6
	load := func(addrs []string, coll string) func() (float64, error) {
		return func() (float64, error) {
			var n atomic.Int64
			errs := make([]error, loaders)
			var wg sync.WaitGroup
			began := time.Now()
			for i := range loaders {
				wg.Go(func() { errs[i] = b.loader(addrs[i%len(addrs)], coll, began.Add(b.length), &n) })
			}
			wg.Wait()
			for _, err := range errs {
				if err != nil {
					return 0, err
				}
			}
			return float64(n.Load()) / time.Since(began).Seconds(), nil
		}
	}
	for _, addr := range addrs {
		if err := keyIndex(ctx, addr, "straight"); err != nil {
			return err
		}
	}
	through, direct, err := b.alternate(load([]string{own.addr}, "c"), load(addrs, "straight"))
	if err != nil {
		return err
	}
	b.value("bulk load, 3 servers: to direct", through/direct, 0.8, true, fmt.Sprintf("%.0f documents/s", through))
	return b.copying(ctx, own, addrs[1])
}

// loader inserts batches of 1,000 documents until end.
func (b *bench) loader(addr, coll string, end time.Time, n *atomic.Int64) error {
	c, err := dial(addr)
	if err != nil {
		return err
	}
	defer c.close()
	for time.Now().Before(end) {
		msg := batch(coll, false, documentsPerBatch, func(int) any { return bson.NewObjectID() }, func(i int) int32 { return int32(i) })
		if err := c.send(msg); err != nil {
			return err
		}
		if err := c.receive(nil); err != nil {
			return err
		}
		n.Add(documentsPerBatch)
	}
	return nil
}
