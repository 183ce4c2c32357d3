package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// conn is a client's connection for requests of any size.
type conn struct {
	nc net.Conn
	r  *wire.Reader
}

func dial(addr string) (*conn, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	_ = nc.SetDeadline(time.Now().Add(5 * time.Minute))
	return &conn{nc: nc, r: wire.NewReader(struct{ io.Reader }{nc})}, nil
}

func (c *conn) close() { _ = c.nc.Close() }

func (c *conn) send(msg []byte) error {
	_, err := c.nc.Write(msg)
	return err
}

// receive reads a reply and gives its body to f, which may be nil.
func (c *conn) receive(f func(bsoncore.Document)) error {
	m, err := c.r.ReadMessage()
	if err != nil {
		return err
	}
	defer m.Release()
	if failed(m.Buf.B) {
		return fmt.Errorf("an error reply: %.300q", m.Buf.B)
	}
	if f != nil {
		f(bsoncore.Document(m.Buf.B[wire.HeaderLen+5:]))
	}
	return nil
}

// documentsPerBatch is how many documents an insertMany has.
const documentsPerBatch = 1000

// batch makes an insertMany of documents that keys places; id makes each _id.
func batch(coll string, ordered bool, n int, id func(i int) any, key func(i int) int32) []byte {
	docs := make([]any, n)
	for i := range docs {
		docs[i] = document(id(i), key(i))
	}
	return message(append(bson.D{{Key: "insert", Value: coll}, {Key: "ordered", Value: ordered}}, session()...), "documents", docs...)
}

// large measures what goes to many partitions: inserts of many documents, and scans.
func (b *bench) large(ctx context.Context) error {
	if !b.wants("insertMany unordered", "insertMany ordered", "scan unsorted", "scan sorted") {
		return nil
	}
	w, err := b.stubWorld(ctx, false)
	if err != nil {
		return err
	}
	direct, err := b.parts(w.direct.addr)
	if err != nil {
		return err
	}
	number := func(i int) any { return i }
	for _, ordered := range []bool{false, true} {
		name := "insertMany unordered, 8 partitions: to parts"
		if ordered {
			name = "insertMany ordered, 8 partitions: to parts"
		}
		msg := batch("c", ordered, documentsPerBatch, number, stubKey)
		own, parts, err := b.alternate(func() (float64, error) { return b.repeat(w.shardway.addr, msg) }, direct)
		if err != nil {
			return err
		}
		note := fmt.Sprintf("%.0f documents/s", own*documentsPerBatch)
		if ordered {
			b.report(name, own/parts, note)
		} else {
			b.value(name, own/parts, 0.8, true, note)
		}
	}
	for _, sorted := range []bool{false, true} {
		name := "scan unsorted, 8 partitions: to one cursor"
		if sorted {
			name = "scan sorted, 8 partitions: to one cursor"
		}
		own, one, err := b.alternate(func() (float64, error) { return b.scan(w.shardway.addr, sorted, 1) },
			func() (float64, error) { return b.scan(w.direct.addr, sorted, halves) })
		if err != nil {
			return err
		}
		b.value(name, own/one, 0.7, true, fmt.Sprintf("%.0f documents/s", own))
	}
	return nil
}

// alternate takes both rates in turns and returns their medians.
func (b *bench) alternate(own, other func() (float64, error)) (float64, float64, error) {
	var rates [2][]float64
	for range b.rounds {
		first := rand.IntN(2)
		for i := range 2 {
			which := (first + i) % 2
			r, err := []func() (float64, error){own, other}[which]()
			if err != nil {
				return 0, 0, err
			}
			rates[which] = append(rates[which], r)
		}
	}
	return median(rates[0]), median(rates[1]), nil
}

// repeat sends msg again and again, and returns how often a second.
func (b *bench) repeat(addr string, msg []byte) (float64, error) {
	c, err := dial(addr)
	if err != nil {
		return 0, err
	}
	defer c.close()
	began, n := time.Now(), 0
	for ; time.Since(began) < b.length; n++ {
		if err := c.send(msg); err != nil {
			return 0, err
		}
		if err := c.receive(nil); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// parts returns what sends the eight parts of an insertMany at the same time, straight to the stub, and returns how many such a second.
func (b *bench) parts(addr string) (func() (float64, error), error) {
	var conns [halves]*conn
	var msgs [halves][]byte
	for p := range halves {
		c, err := dial(addr)
		if err != nil {
			return nil, err
		}
		conns[p] = c
		msgs[p] = batch("c", false, documentsPerBatch/halves, func(i int) any { return i }, func(i int) int32 { return stubKey(i*halves + p) })
	}
	return func() (float64, error) {
		began, n := time.Now(), 0
		for ; time.Since(began) < b.length; n++ {
			for p, c := range conns {
				if err := c.send(msgs[p]); err != nil {
					return 0, err
				}
			}
			for _, c := range conns {
				if err := c.receive(nil); err != nil {
					return 0, err
				}
			}
		}
		return float64(n) / time.Since(began).Seconds(), nil
	}, nil
}

// scan reads the eight partitions of the stub, or its one collection, so many times to the end and returns the documents a second. The collection is as
// large as one partition: read eight times it takes as long, so that what else the machine does meets both alike.
func (b *bench) scan(addr string, sorted bool, times int) (float64, error) {
	c, err := dial(addr)
	if err != nil {
		return 0, err
	}
	defer c.close()
	cmd := bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "k", Value: bson.D{{Key: "$in", Value: stubKeys[:halves]}}}}}}
	if sorted {
		cmd = append(cmd, bson.E{Key: "sort", Value: bson.D{{Key: "s", Value: 1}}})
	}
	cmd = append(cmd, session()...)
	lsid := cmd[len(cmd)-1]
	began, docs := time.Now(), 0
	first := message(cmd, "")
	for msg := first; ; {
		if err := c.send(msg); err != nil {
			return 0, err
		}
		var id int64
		err := c.receive(func(d bsoncore.Document) {
			cur := d.Lookup("cursor").Document()
			id = cur.Lookup("id").Int64()
			docs += count(cur)
		})
		if err != nil {
			return 0, err
		}
		if id == 0 {
			if times--; times <= 0 {
				return float64(docs) / time.Since(began).Seconds(), nil
			}
			msg = first
			continue
		}
		msg = message(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}, lsid}, "")
	}
}

// count counts the documents of a cursor's batch.
func count(cur bsoncore.Document) (n int) {
	for _, name := range []string{"firstBatch", "nextBatch"} {
		arr, ok := cur.Lookup(name).ArrayOK()
		if !ok {
			continue
		}
		for rem := arr[4:]; len(rem) > 1; n++ {
			_, rest, ok := bsoncore.ReadElement(rem)
			if !ok {
				break
			}
			rem = rest
		}
	}
	return n
}
