package router

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

// givenDocs is an upstream of given documents.
type givenDocs struct{ docs []bson.Raw }

func (l *givenDocs) nextLimited(context.Context, *Request) (bson.Raw, error) {
	if len(l.docs) == 0 {
		return nil, nil
	}
	doc := l.docs[0]
	l.docs = l.docs[1:]
	return doc, nil
}

func (l *givenDocs) close() {}

// TestRunsAfterAMergeFitIntoAMessage: the command that gives documents to a backend is not larger than a server takes, and one document always fits.
func TestRunsAfterAMergeFitIntoAMessage(t *testing.T) {
	tiny := mustMarshal(d("a", 1))
	large := func(mb int) bson.Raw { return mustMarshal(d("a", 1, "s", strings.Repeat("x", mb<<20))) }
	many := func(n int, doc bson.Raw) (docs []bson.Raw) {
		for range n {
			docs = append(docs, doc)
		}
		return docs
	}
	byA, err := order.ParseSort(mustMarshal(d("a", 1)))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		docs    []bson.Raw
		streams bool
		key     order.Sort
		runs    int // 0: too much
	}{
		"half a million tiny ones at once":  {many(500_000, tiny), false, order.Sort{}, 0},
		"half a million tiny ones in parts": {many(500_000, tiny), true, order.Sort{}, 5},
		"one of 15 MB":                      {[]bson.Raw{large(15)}, false, order.Sort{}, 1},
		"large ones in parts":               {[]bson.Raw{large(1), large(13), large(15), tiny}, true, order.Sort{}, 4},
		"large ones of one group":           {[]bson.Raw{large(1), large(13)}, true, byA, 0},
		"13 MB at once":                     {many(13, large(1)), false, order.Sort{}, 0},
		"11 MB at once":                     {many(11, large(1)), false, order.Sort{}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := &rest{inner: &givenDocs{docs: test.docs}, streams: test.streams, key: test.key, stages: []bson.Raw{mustMarshal(d("$match", d("a", 1)))}}
			runs, total := 0, 0
			for !s.ended {
				docs, err := s.gather(t.Context(), nil)
				if err != nil {
					if test.runs != 0 || wire.AsError(err).Code != 292 {
						t.Error(err)
					}
					return
				}
				if n := len(literalDocuments(docs)); docs.n > 1 && n > wire.MaxDocumentSize-1024 || n > wire.MaxInternalDocumentSize-1024 {
					t.Errorf("%d documents make a message of %d bytes", docs.n, n)
				}
				total += docs.n
				if docs.n > 0 {
					runs++
				}
			}
			if runs != test.runs || total != len(test.docs) {
				t.Errorf("%d documents in %d runs, want %d in %d", total, runs, len(test.docs), test.runs)
			}
		})
	}
}
