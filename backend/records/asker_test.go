package records

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
)

// TestQuestionsGoTogether: questions that come while one is under way are the next one, whose
// answer each asker gets his part of. Who gives up leaves the others alone.
func TestQuestionsGoTogether(t *testing.T) {
	const askers = 50
	s := backendtest.New(t)
	first, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	uid := sha256.Sum256(nil)
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		once.Do(func() { close(first); <-release })
		values, _ := c.Body.Lookup("filter", "_id", "$in").Array().Values()
		var docs []bson.D
		for _, v := range values {
			_, id := v.Document().Lookup("id").Binary()
			docs = append(docs, bson.D{{Key: "_id", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: id}}, {Key: "uid", Value: bson.Binary{Data: uid[:]}}}}, {Key: "txnNum", Value: int64(id[0])}})
		}
		return cursorOf(docs...)
	})
	b := open(t, s)
	var asking, joined sync.WaitGroup
	a := NewAsker(t.Context(), func(f func()) { asking.Go(f) })
	ask := func(n int) {
		id := SessionID{byte(n)}
		found, err := a.Sessions(t.Context(), b, []SessionID{id})
		if err != nil || len(found) != 1 || found[id].Txn != int64(n) {
			t.Errorf("asker %d: %v %v", n, found, err)
		}
	}
	joined.Go(func() { ask(1) })
	<-first
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Sessions(gone, b, []SessionID{{200}}); !errors.Is(err, context.Canceled) {
		t.Errorf("one that gave up: %v", err)
	}
	for n := range askers {
		joined.Go(func() { ask(n + 2) })
	}
	for waiting := 0; waiting < askers+1; { // until all have joined the next question
		a.mu.Lock()
		if q := a.by[b]; q.next != nil {
			waiting = len(q.next.ids)
		}
		a.mu.Unlock()
	}
	close(release)
	joined.Wait()
	asking.Wait()
	if n := len(s.Received()); n != 2 {
		t.Errorf("%d questions, want 2", n)
	}
	if len(a.by) != 0 {
		t.Error("something is kept of backends that nobody asks")
	}
}
