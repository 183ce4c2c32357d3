package rules_test

import (
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/fleet/rules"
)

// clock is a clock that stands until it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func clocked(t *testing.T, settings rules.Settings) (*clock, *client) {
	t.Helper()
	wall := &clock{now: time.Now()}
	settings.Now = wall.Now
	s := fleettest.Start(t, 1, fleettest.WithRules(settings)).Servers[0]
	if fleettest.FrontOf(s) == nil {
		t.Skip("a mongod's clock cannot be moved")
	}
	return wall, dialServer(t, s.Addr())
}

func TestTooManySessions(t *testing.T) {
	wall, c := clocked(t, rules.Settings{MaxSessions: 2})
	ping := func(n byte) int64 {
		code, _ := c.run("find", "c", "lsid", sessionID(n), "$db", "s").Lookup("code").AsInt64OK()
		return code
	}
	for n, want := range []int64{0, 0, 261, 261} {
		if got := ping(byte(n)); got != want {
			t.Errorf("session %d: %d, want %d", n, got, want)
		}
	}
	if got := ping(0); got != 0 {
		t.Errorf("a session that is known: %d", got)
	}
	c.must("endSessions", bson.A{sessionID(0)}, "$db", "admin")
	if got := ping(2); got != 0 {
		t.Errorf("after another has been ended: %d", got)
	}
	wall.move(5 * time.Minute)
	if got := ping(3); got != 0 {
		t.Errorf("after a refresh: %d", got)
	}
}

// fill makes a collection and opens a cursor on it in a session.
func fill(c *client, n byte) int64 {
	var docs bson.A
	for i := range 100 {
		docs = append(docs, bson.D{{Key: "_id", Value: int(n)*1000 + i}})
	}
	c.must("insert", "c", "documents", docs, "$db", "s")
	return c.must("find", "c", "batchSize", 10, "lsid", sessionID(n), "$db", "s").Lookup("cursor", "id").AsInt64()
}

func more(c *client, cursor int64, n byte) int64 {
	code, _ := c.run("getMore", cursor, "collection", "c", "batchSize", 10, "lsid", sessionID(n), "$db", "s").Lookup("code").AsInt64OK()
	return code
}

func TestASessionsCursorsEndWithIt(t *testing.T) {
	wall, c := clocked(t, rules.Settings{})
	idle, used, refreshed, ended := fill(c, 1), fill(c, 2), fill(c, 3), fill(c, 4)
	for range 3 {
		wall.move(20 * time.Minute)
		if code := more(c, used, 2); code != 0 {
			t.Errorf("a cursor that is read: %d", code)
		}
		c.must("refreshSessions", bson.A{sessionID(3)}, "$db", "admin")
	}
	if code := more(c, refreshed, 3); code != 0 {
		t.Errorf("a cursor whose session was refreshed: %d", code)
	}
	if code := more(c, idle, 1); code != 43 {
		t.Errorf("a cursor whose session was not used for an hour: %d, want 43", code)
	}
	c.must("endSessions", bson.A{sessionID(4)}, "$db", "admin")
	if code := more(c, ended, 4); code != 43 {
		t.Errorf("a cursor whose session was ended: %d, want 43", code)
	}
}

func TestARecordEndsWithItsSession(t *testing.T) {
	wall, c := clocked(t, rules.Settings{})
	c.must("insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}}, "$db", "r")
	write := inc("r", sessionID(1), 1, 1)
	c.must(write...)
	wall.move(20 * time.Minute)
	if reply := c.must(write...); retried(reply) == "" {
		t.Errorf("after 20 minutes: %v", reply)
	}
	wall.move(40 * time.Minute)
	if reply := c.must(write...); retried(reply) != "" {
		t.Errorf("after 40 minutes without use: %v", reply)
	}
	if n := counter(c, "r", 1); n != 2 {
		t.Errorf("applied %d times, want 2", n)
	}
}
