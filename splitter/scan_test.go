package splitter

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
)

// TestScanOfATimeSeries: a server reads a time-series collection or a view by an aggregation, which
// takes no noCursorTimeout.
func TestScanOfATimeSeries(t *testing.T) {
	r, _ := scripted(t, 1, backendtest.ReplicaSet("rs"), func(cmd backendtest.Command) backendtest.Answer {
		if _, err := cmd.Body.LookupErr("noCursorTimeout"); err == nil {
			return backendtest.Err(168, "InvalidPipelineOperator", "Option noCursorTimeout not supported in aggregation.")
		}
		return firstBatch(0, bson.D{{Key: "_id", Value: 1}})
	})
	c, err := r.s.scan(t.Context(), r.outputs[0].Home, 10, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close(t.Context())
	if !c.next(t.Context()) || c.next(t.Context()) || c.err != nil {
		t.Errorf("not read to the end: %v", c.err)
	}
}

// TestScanThatRestsKeepsItsSession: while nobody asks for the next batch, the session of the cursor
// is renewed on the cursor's own host, and not any more when the scan is closed.
func TestScanThatRestsKeepsItsSession(t *testing.T) {
	renewed := make(chan backendtest.Command, 1000)
	r, server := scripted(t, 1, backendtest.ReplicaSet("rs"), func(cmd backendtest.Command) backendtest.Answer {
		switch cmd.Name {
		case "find":
			return firstBatch(7, bson.D{{Key: "_id", Value: 1}})
		case "refreshSessions":
			select {
			case renewed <- cmd:
			default:
			}
		}
		return backendtest.OK()
	})
	r.s.cfg.renewSessions = time.Millisecond
	c, err := r.s.scan(t.Context(), r.outputs[0].Home, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		select {
		case cmd := <-renewed:
			want := named(server, "find")[0].Body.Lookup("lsid")
			if got := cmd.Body.Lookup("refreshSessions", "0"); !got.Equal(want) {
				t.Errorf("the session %v is renewed, the cursor is of %v", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the session is not renewed")
		}
	}
	c.close(t.Context())
	server.Forget()
	if n := len(named(server, "refreshSessions")); n != 0 {
		t.Errorf("renewed %d times after the end", n)
	}
}

func firstBatch(id int64, docs ...bson.D) backendtest.Answer {
	return backendtest.OK(bson.E{Key: "cursor", Value: bson.D{{Key: "id", Value: id}, {Key: "ns", Value: "db.c"}, {Key: "firstBatch", Value: docs}}})
}
