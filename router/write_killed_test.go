package router

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/wire"
)

func firstDoc(docs []bson.Raw) bson.Raw {
	if len(docs) == 0 {
		return emptyDocument
	}
	return docs[0]
}

// TestKilledStatement: where a batch has been carried out in part and is killed, the statement's error is the kill and not what that did to connections.
func TestKilledStatement(t *testing.T) {
	stalls, end := make(chan struct{}), make(chan struct{})
	defer close(end)
	e, servers := scriptEnv(t)
	servers[1].SetScript(func(c backendtest.Command) backendtest.Answer {
		if multi, ok := firstDoc(c.Docs("updates")).Lookup("multi").BooleanOK(); ok && multi {
			close(stalls)
			<-end
		}
		return writesDone(c)
	})
	e.shard("c", "k", 3)
	ctx, kill := context.WithCancelCause(e.ctx)
	go func() {
		<-stalls
		kill(wire.Errorf(wire.Interrupted, "operation was interrupted"))
	}()
	r, err := e.rawIn(ctx, d("update", "c", "updates", bson.A{
		d("q", d("k", "somewhere"), "u", d("$set", d("n", 1))), d("q", d(), "u", d("$set", d("n", 1)), "multi", true)}))
	if codes := e.writeCodes(r); err != nil || len(codes) != 1 || codes[1] != int32(wire.Interrupted) {
		t.Errorf("%v %v", r, err)
	}
}

// TestServersTimeLimit: what a server says when maxTimeMS is over is waited for; hanging up on it instead costs a connection each time.
func TestServersTimeLimit(t *testing.T) {
	e, _ := scriptEnv(t, func(s *backendtest.Server) {
		s.SetScript(func(c backendtest.Command) backendtest.Answer {
			if limit, ok := c.Body.Lookup("maxTimeMS").AsInt64OK(); ok {
				a := backendtest.Err(50, "MaxTimeMSExpired", "the server says so")
				a.Delay = time.Duration(limit)*time.Millisecond + 5*time.Millisecond
				return a
			}
			return writesDone(c)
		})
	})
	e.shard("c", "k", 3)
	_, err := e.raw(d("count", "c", "query", d("x", 1), "maxTimeMS", 10))
	if e := wire.AsError(err); err == nil || e.Code != wire.MaxTimeMSExpired || !strings.Contains(e.Message, "the server says so") {
		t.Errorf("%v", err)
	}
}
