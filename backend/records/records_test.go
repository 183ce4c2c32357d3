package records

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/wire"
)

func open(t *testing.T, s *backendtest.Server) *backend.Backend {
	t.Helper()
	b, err := backend.Open(t.Context(), backend.Config{ID: "b0", URI: s.URI(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	if err := b.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func cursorOf(docs ...bson.D) backendtest.Answer {
	batch := bson.A{}
	for _, d := range docs {
		batch = append(batch, d)
	}
	return backendtest.OK(bson.E{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: batch}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: "config.transactions"}}})
}

// TestQuestionThatAMongodAnswers: the question is one that a mongod does not refuse, waits for a
// majority, and has an end.
func TestQuestionThatAMongodAnswers(t *testing.T) {
	s := backendtest.New(t)
	var id SessionID
	copy(id[:], "fedcba9876543210")
	uid := sha256.Sum256(nil)
	key := bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: id[:]}}, {Key: "uid", Value: bson.Binary{Data: uid[:]}}}
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		return cursorOf(bson.D{{Key: "_id", Value: key}, {Key: "txnNum", Value: int64(3)},
			{Key: "lastWriteOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{T: 9, I: 2}}, {Key: "t", Value: int64(1)}}}})
	})
	found, err := Sessions(t.Context(), open(t, s), []SessionID{id})
	if err != nil || found[id].Txn != 3 || fmt.Sprint(found[id].Last) != "[{9 2}]" {
		t.Fatal(found, err)
	}
	c := s.Received()[0].Body
	if level := c.Lookup("readConcern", "level").StringValue(); level != "linearizable" {
		t.Errorf("read with level %s", level)
	}
	if ms := c.Lookup("maxTimeMS").Int64(); ms <= 0 || ms > 60_000 {
		t.Errorf("maxTimeMS is %d", ms)
	}
}

// TestWhoseSession: sessions are looked for under the users that the server names, whatever the
// connection string says, and under nobody; a server that does not say is an error.
func TestWhoseSession(t *testing.T) {
	const subject = "CN=proxy,OU=data,O=Example,C=PT"
	for _, tt := range []struct {
		what   string
		answer backendtest.Answer
		want   []string
		fails  bool
	}{
		{what: "nobody", answer: backendtest.Users(), want: []string{""}},
		{what: "a password", answer: backendtest.Users([2]string{"shardway", "admin"}), want: []string{"", "shardway@admin"}},
		{what: "a certificate", answer: backendtest.Users([2]string{subject, "$external"}), want: []string{"", subject + "@$external"}},
		{what: "an error", answer: backendtest.Err(13391, "Location13391", "no"), fails: true},
		{what: "a reply without users", answer: backendtest.OK(), fails: true},
		{what: "a user without a database", answer: backendtest.OK(bson.E{Key: "authInfo", Value: bson.D{{Key: "authenticatedUsers", Value: bson.A{bson.D{{Key: "user", Value: "x"}}}}}}), fails: true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			s := backendtest.New(t)
			s.SetIdentity(tt.answer)
			s.SetScript(func(backendtest.Command) backendtest.Answer { return cursorOf() })
			_, err := Sessions(t.Context(), open(t, s), []SessionID{{1}})
			if (err != nil) != tt.fails {
				t.Fatal(err)
			}
			if tt.fails {
				if len(s.Received()) != 0 {
					t.Error("records were asked for without knowing whose")
				}
				return
			}
			got := map[string]bool{}
			values, _ := s.Received()[0].Body.Lookup("filter", "_id", "$in").Array().Values()
			for _, v := range values {
				_, uid := v.Document().Lookup("uid").Binary()
				got[string(uid)] = true
			}
			for _, who := range tt.want {
				if sum := sha256.Sum256([]byte(who)); !got[string(sum[:])] {
					t.Errorf("not asked for %q", who)
				}
			}
			if len(got) != len(tt.want) {
				t.Errorf("asked for %d users", len(got))
			}
		})
	}
}

// TestLostHistory: only an oplog that has been truncated past an entry is 217. A server that lacks
// the entry, or is not asked in a way that has it wait, is no proof of that.
func TestLostHistory(t *testing.T) {
	at := bson.Timestamp{T: 100, I: 5}
	for _, tt := range []struct {
		what   string
		oldest []bson.D
		want   wire.Code
	}{
		{"truncated", []bson.D{{{Key: "ts", Value: bson.Timestamp{T: 100, I: 6}}}}, wire.IncompleteTransactionHistory},
		{"empty", nil, wire.IncompleteTransactionHistory},
		{"begins before the entry", []bson.D{{{Key: "ts", Value: bson.Timestamp{T: 99}}}}, wire.HostUnreachable},
	} {
		s := backendtest.New(t)
		s.SetClock(bson.Timestamp{T: 50})
		s.SetScript(func(c backendtest.Command) backendtest.Answer {
			if _, err := c.Body.LookupErr("filter", "ts"); err != nil {
				return cursorOf(tt.oldest...)
			}
			return cursorOf()
		})
		_, err := Statements(t.Context(), open(t, s), Record{Txn: 1, Last: []bson.Timestamp{at}}, bson.Timestamp{})
		if e := wire.AsError(err); e == nil || e.Code != tt.want {
			t.Errorf("%s: %v", tt.what, err)
		}
		concern := s.Received()[0].Body.Lookup("readConcern").Document()
		if sec, inc := concern.Lookup("afterClusterTime").Timestamp(); concern.Lookup("level").StringValue() != "majority" || (bson.Timestamp{T: sec, I: inc}) != at {
			t.Errorf("%s: read with %v", tt.what, concern)
		}
	}
}

// TestStatements follows a chain of two users' records past the marker.
func TestStatements(t *testing.T) {
	chain := map[uint32]bson.D{
		6: {{Key: "stmtId", Value: int32(3)}, {Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{T: 1, I: 4}}}}},
		4: {{Key: "stmtId", Value: bson.A{int32(1), int32(2)}}, {Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{}}}}},
		3: {{Key: "o", Value: bson.D{{Key: "applyOps", Value: bson.A{bson.D{{Key: "stmtId", Value: int32(0)}}}}}}},
	}
	s := backendtest.New(t)
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		_, inc := c.Body.Lookup("filter", "ts").Timestamp()
		return cursorOf(chain[inc])
	})
	b := open(t, s)
	done, err := Statements(t.Context(), b, Record{Last: []bson.Timestamp{{T: 1, I: 6}, {T: 1, I: 3}}}, bson.Timestamp{T: 1, I: 5})
	if err != nil || fmt.Sprint(done) != "map[0:true 1:true 2:true]" {
		t.Errorf("%v %v", done, err)
	}
}

// TestCausesThatLast tells what may pass from what the server will refuse again.
func TestCausesThatLast(t *testing.T) {
	for _, tt := range []struct {
		code    wire.Code
		lasting bool
	}{
		{13, true}, {18, true}, {2, true}, {9, true}, {59, true}, {72, true}, {40415, true}, {5557800, true},
		{6, false}, {89, false}, {91, false}, {189, false}, {10107, false}, {11600, false}, {50, false}, {133, false}, {134, false}, {262, false}, {391, false}, {217, false},
	} {
		if Lasting(wire.Errorf(tt.code, "no")) != tt.lasting {
			t.Errorf("%d: lasting is %v", tt.code, !tt.lasting)
		}
	}
	if Lasting(nil) || Lasting(context.DeadlineExceeded) {
		t.Error("no error, or a deadline, lasts")
	}
	s := backendtest.New(t)
	s.SetScript(func(backendtest.Command) backendtest.Answer {
		return backendtest.Err(13, "Unauthorized", "not authorized on config to execute command { find: \"transactions\" }")
	})
	err := Probe(t.Context(), open(t, s))
	if e := wire.AsError(Unanswerable("b0", err)); !Lasting(err) || e.Code != wire.Unauthorized || !strings.Contains(e.Message, "not authorized on config") {
		t.Errorf("%v", e)
	}
}
