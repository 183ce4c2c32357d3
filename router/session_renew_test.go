package router

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
)

// TestSessionsOfOpenCursors: which sessions are renewed at which backends as time goes by: each
// once, of cursors that are used, on every backend that they were opened on.
func TestSessionsOfOpenCursors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cs := &cursors{}
		var rounds []map[renewedSession]struct{}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			everyTick(ctx, renewSessionsEvery, func() { rounds = append(rounds, cs.sessions(time.Now())) })
		}()
		table := partition.NewTable()
		m := &catalog.Map{NS: "d.c", V: 1}
		for i, r := range shardkey.Even(2) {
			m.Partitions = append(m.Partitions, catalog.Partition{Range: r, Backend: "b" + itoa(i), Physical: catalog.PhysicalName("d", "c", 1, 0, i)})
		}
		table.Apply(&catalog.Snapshot{Maps: map[string]*catalog.Map{"d.c": m}})
		on := func(backends ...string) (parts []*partition.Part) {
			for _, p := range table.View().Collection("d.c").Parts {
				if slices.Contains(backends, p.Backend) {
					parts = append(parts, p)
				}
			}
			return parts
		}
		open := func(session byte, forever bool, backends ...string) *cursor {
			q := &Request{}
			if session > 0 {
				q.Session = mustMarshal(d("id", bson.Binary{Subtype: 4, Data: append(make([]byte, 15), session)}))
			}
			c, err := cs.open(q, "d.c", &closing{}, on(backends...), forever)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		names := func(i int) map[string]int {
			got := map[string]int{}
			for s := range rounds[i] {
				got[fmt.Sprint(s.backend, s.id[15])]++
			}
			return got
		}
		merged, twin, idle, busy, none := open(1, true, "b0", "b1"), open(1, true, "b1"), open(2, true, "b1"), open(3, false, "b0"), open(0, true, "b0")
		for _, c := range []*cursor{merged, twin, idle, none} {
			cs.release(c, false)
		}
		use := func(c *cursor) {
			cs.mu.Lock()
			c.busy = true
			cs.mu.Unlock()
			cs.release(c, false)
		}
		for range 8 { // 40 minutes, in which only the first is read
			time.Sleep(5*time.Minute + time.Second)
			synctest.Wait()
			use(merged)
		}
		if len(rounds) != 8 {
			t.Fatalf("%d rounds", len(rounds))
		}
		if got := fmt.Sprint(names(0)); got != "map[b01:1 b03:1 b11:1 b12:1]" {
			t.Errorf("at first %s", got)
		}
		if got := fmt.Sprint(names(7)); got != "map[b01:1 b03:1 b11:1]" {
			t.Errorf("after 40 minutes %s: the idle one's session is to end, the merged one's is to live on both backends", got)
		}
		cs.release(busy, true)
		cs.kill(merged.id, "")
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if n := len(rounds[8]); n != 0 {
			t.Errorf("%d sessions of cursors that are gone", n)
		}
		cancel()
		<-ended
	})
}

// TestOpenBranchesAreRenewed: the session of a merged cursor is renewed at each backend that has a
// branch of it, once however many cursors it has.
func TestOpenBranchesAreRenewed(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 3)
	for _, s := range servers {
		s.SetScript(func(c backendtest.Command) backendtest.Answer {
			if c.Name != "find" {
				return backendtest.OK()
			}
			return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(7), "ns", "x.y", "firstBatch", bson.A{d("_id", 1)})})
		})
	}
	for range 2 {
		if _, err := e.raw(d("find", "c", "batchSize", 1, "lsid", testSession)); err != nil {
			t.Fatal(err)
		}
	}
	e.router.renewOpenCursors(e.ctx)
	for i, s := range servers {
		var renewed []bson.RawValue
		for _, c := range s.Received() {
			if c.Name == "refreshSessions" {
				values, _ := c.Body.Lookup("refreshSessions").Array().Values()
				renewed = append(renewed, values...)
			}
		}
		if len(renewed) != 1 {
			t.Fatalf("b%d: %d sessions were renewed", i, len(renewed))
		}
		if _, id := renewed[0].Document().Lookup("id").Binary(); string(id) != "fedcba9876543210" {
			t.Errorf("b%d: the session %x was renewed", i, id)
		}
	}
}
