package splitter_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/splitter"
	"github.com/shardway/shardway/wire"
)

// refusing is a way to a server on which questions about config.transactions name a read concern
// that no server knows, once refuse is set.
func refusing(t *testing.T, to string, refuse *atomic.Bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	forward := func(from, to net.Conn, change func([]byte)) {
		defer func() { _, _ = from.Close(), to.Close() }()
		r := wire.NewReader(from)
		for {
			m, err := r.ReadMessage()
			if err != nil {
				return
			}
			change(m.Buf.B)
			_, err = to.Write(m.Buf.B)
			m.Release()
			if err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			go forward(c, s, func(b []byte) {
				if at := bytes.Index(b, []byte("linearizable")); at > 0 && refuse.Load() && bytes.Contains(b, []byte("transactions\x00")) {
					copy(b[at:], "unimaginable")
				}
			})
			go func() { _, _ = io.Copy(c, s); _ = c.Close() }()
		}
	}()
	return "mongodb://" + l.Addr().String() + "/?directConnection=true"
}

// TestNothingIsReplacedWhereRecordsCannotBeAsked: on a backend that refuses to tell what sessions
// did, a split, a drop and a rename end with the server's error, and the map stays.
func TestNothingIsReplacedWhereRecordsCannotBeAsked(t *testing.T) {
	var refuse atomic.Bool
	w := newWorld(t, func(cfg *splitter.Config) {
		addr := strings.Trim(strings.TrimPrefix(cfg.Backends.Get("b1").URI(), "mongodb://"), "/")
		addr, _, _ = strings.Cut(addr, "/")
		b, err := backend.Open(t.Context(), backend.Config{ID: "b1", URI: refusing(t, addr, &refuse), Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close(context.Background()) })
		if err := b.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		set := &backend.Set{}
		if err := set.Add(b); err != nil {
			t.Fatal(err)
		}
		cfg.Backends, cfg.Backoff = set, 10*time.Millisecond
	})
	if err := w.store.CreateDatabase(t.Context(), "db", "b1"); err != nil {
		t.Fatal(err)
	}
	w.shard(t, "k", 1)
	if _, err := w.b.Client().Database("db").Collection(w.home()).InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	before := w.store.Snapshot().Maps["db.c"]
	refuse.Store(true)
	for what, change := range map[string]func() error{
		"split":  func() error { return w.split.Split(t.Context(), "db.c", shardkey.Position(1<<63)) },
		"drop":   func() error { return w.split.Drop(t.Context(), "db.c") },
		"rename": func() error { return w.split.Rename(t.Context(), "db.c", "db.d", false) },
	} {
		err := change()
		if e := wire.AsError(err); e == nil || e.Code.Retriable() || !strings.Contains(e.Message, "refuses to tell which retryable writes it has executed") || !strings.Contains(e.Message, "caused by") {
			t.Errorf("%s: %v", what, err)
		}
		if err := w.store.RefreshMap(t.Context(), "db.c"); err != nil {
			t.Fatal(err)
		}
		if after := w.store.Snapshot().Maps["db.c"]; after == nil || after.V != before.V || after.Partitions[0].Physical != before.Partitions[0].Physical {
			t.Errorf("%s: the map is %+v, before %+v", what, after, before)
		}
	}
}
