package splitter

import (
	"errors"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// elected is a reply to a write of the primary that was elected in that term.
func elected(term byte) backendtest.Answer {
	return backendtest.OK(bson.E{Key: "n", Value: int32(0)}, bson.E{Key: "electionId", Value: bson.ObjectID{0x7f, 0xff, 0xff, 0xff, 11: term}})
}

// TestChangesOfAHomeCountWhenConfirmed: what changes a home's metadata is repeated until a majority
// has confirmed it. "There is nothing to do" counts when one primary has said so between two
// confirmations.
func TestChangesOfAHomeCountWhenConfirmed(t *testing.T) {
	late := unconfirmed(64, "WriteConcernFailed", "waiting for replication timed out")
	down := unconfirmed(91, "ShutdownInProgress", "Replication is being shut down")
	none := backendtest.Err(27, "IndexNotFound", "index not found with name [a_1]")
	for name, c := range map[string]struct {
		hello    backendtest.Hello
		answers  []backendtest.Answer // to dropIndexes
		terms    []backendtest.Answer // to the confirmations
		sent     int
		code     wire.Code // of the error; 0: it is done
		retrying bool
	}{
		"confirmed":                       {answers: []backendtest.Answer{backendtest.OK()}, sent: 1},
		"refused":                         {answers: []backendtest.Answer{backendtest.Err(72, "InvalidOptions", "cannot drop _id index")}, sent: 1, code: 72},
		"confirmed when repeated":         {answers: []backendtest.Answer{late, down, backendtest.OK()}, sent: 3},
		"its reply is lost":               {answers: []backendtest.Answer{backendtest.Cut(), backendtest.OK()}, sent: 2},
		"a step-down":                     {answers: []backendtest.Answer{backendtest.Err(10107, "NotWritablePrimary", "not primary"), backendtest.OK()}, sent: 2},
		"never confirmed":                 {answers: []backendtest.Answer{late, late, late, late, late}, sent: 5, code: 64, retrying: true},
		"done before, and one primary":    {answers: []backendtest.Answer{late, none, none}, terms: []backendtest.Answer{elected(1), elected(1)}, sent: 3},
		"done before, by another primary": {answers: []backendtest.Answer{late, none, none, none}, terms: []backendtest.Answer{elected(1), elected(2), elected(2)}, sent: 4},
		"done, undone and done again":     {answers: []backendtest.Answer{late, none, backendtest.OK()}, terms: []backendtest.Answer{elected(1)}, sent: 3},
		"nothing to do is not confirmed":  {answers: []backendtest.Answer{none, none, none, none, none}, terms: []backendtest.Answer{late, late, late, late, late}, sent: 5, code: 27, retrying: true},
		"a standalone":                    {hello: backendtest.Standalone(), answers: []backendtest.Answer{none}, sent: 1},
	} {
		t.Run(name, func(t *testing.T) {
			if c.hello.SetName == "" && name != "a standalone" {
				c.hello = backendtest.ReplicaSet("rs")
			}
			answers, terms := slices.Clone(c.answers), slices.Clone(c.terms)
			r, server := scripted(t, 1, c.hello, func(cmd backendtest.Command) backendtest.Answer {
				from := &answers
				if cmd.Name == "delete" {
					from = &terms
				}
				if len(*from) == 0 {
					t.Errorf("%s is sent once more", cmd.Name)
					return backendtest.OK()
				}
				a := (*from)[0]
				*from = (*from)[1:]
				return a
			})
			h := r.outputs[0].Home
			err := r.s.changeHome(t.Context(), h, bson.D{{Key: "dropIndexes", Value: h.Physical}, {Key: "index", Value: "a_1"}}, wire.IndexNotFound)
			if (err != nil) != (c.code != 0) || err != nil && wire.AsError(err).Code != c.code || passingAgain(err) != c.retrying {
				t.Errorf("%v", err)
			}
			sent := named(server, "dropIndexes")
			if len(sent) != c.sent {
				t.Errorf("sent %d times, want %d", len(sent), c.sent)
			}
			for _, cmd := range append(sent, named(server, "delete")...) {
				if cmd.Body.Lookup("writeConcern", "w").StringValue() != "majority" {
					t.Errorf("%v", cmd.Body)
				}
			}
			if len(terms) > 0 {
				t.Errorf("%d confirmations too few", len(terms))
			}
		})
	}
}

// TestCreationCountsWhenConfirmed: nothing is done with a collection whose creation a majority has
// not confirmed. An index would make it anew, without its options, if the creation is undone.
func TestCreationCountsWhenConfirmed(t *testing.T) {
	r, server := scripted(t, 1, backendtest.ReplicaSet("rs"), func(cmd backendtest.Command) backendtest.Answer {
		if cmd.Name == "create" {
			return unconfirmed(91, "ShutdownInProgress", "Replication is being shut down")
		}
		return backendtest.OK()
	})
	like := collectionInfo{exists: true, indexes: []bson.D{{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "a_1"}}}}
	_, err := r.s.create(t.Context(), r.outputs[0].Home, like, nil)
	var not *backend.UnconfirmedError
	if !errors.As(err, &not) || !passingAgain(ifPassing(err)) {
		t.Errorf("%v", err)
	}
	if n := len(server.Received()); n != 1 {
		t.Errorf("%d commands are sent, want the creation alone", n)
	}
}

// TestDDLIsNotUndoneWhileUnconfirmed: a DDL command that is repeated on all parts and not confirmed
// on one is neither over nor refused: indexes stay, and so does the record.
func TestDDLIsNotUndoneWhileUnconfirmed(t *testing.T) {
	r, server := scripted(t, 1, backendtest.ReplicaSet("rs"), func(cmd backendtest.Command) backendtest.Answer {
		if cmd.Body.Lookup(cmd.Name).StringValue() == "c@1.0.1" {
			return unconfirmed(64, "WriteConcernFailed", "waiting for replication timed out")
		}
		return backendtest.OK()
	})
	var parts []*partition.Part
	for i := range 2 {
		parts = append(parts, &partition.Part{Home: partition.Home{Backend: "b", DB: "db", Physical: catalog.PhysicalName("db", "c", 1, 0, i)}})
	}
	command := raw(t, bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "a_1"}}}}})
	if err := r.s.settleDDL(t.Context(), &catalog.Reshape{NS: "db.c", Command: command}, parts, true); err == nil || wire.AsError(err).Code != 64 {
		t.Errorf("%v", err)
	}
	if n := len(named(server, "dropIndexes")); n > 0 {
		t.Errorf("%d indexes are dropped", n)
	}
}

// TestExpiryCountsWhenConfirmed: an expiry that was set and not confirmed is not given up as one
// that is refused.
func TestExpiryCountsWhenConfirmed(t *testing.T) {
	ix := bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at_1"}}
	r, server := scripted(t, 1, backendtest.ReplicaSet("rs"), func(cmd backendtest.Command) backendtest.Answer {
		switch cmd.Name {
		case "listIndexes":
			return firstBatch(0, ix)
		case "collMod":
			return unconfirmed(64, "WriteConcernFailed", "waiting for replication timed out")
		}
		return backendtest.OK()
	})
	err := r.s.expire(t.Context(), "db.c", catalog.RecordedHome{Backend: "b", Physical: "c@1.2.0"}, map[any]any{"at_1": int32(60)})
	if err == nil || wire.AsError(err).Code != 64 {
		t.Errorf("%v", err)
	}
	if n := len(named(server, "collMod")); n != ddlTries {
		t.Errorf("sent %d times, want %d", n, ddlTries)
	}
}

// TestInsertsNameTheirCollection: from 6.0 on a server refuses an insert with the UUID of a
// collection that is not there, instead of making one. Before, and for time series, whose UUID is
// another collection's, none is sent.
func TestInsertsNameTheirCollection(t *testing.T) {
	uuid := catalog.NewUUID()
	for name, c := range map[string]struct {
		wire int32
		made collectionInfo
		sent bool
	}{
		"6.0":           {17, collectionInfo{hasUUID: true, uuid: uuid}, true},
		"5.0":           {13, collectionInfo{hasUUID: true, uuid: uuid}, false},
		"without UUIDs": {17, collectionInfo{uuid: uuid}, false},
		"a time series": {17, collectionInfo{hasUUID: true, uuid: uuid, options: bson.D{{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			hello := backendtest.ReplicaSet("rs")
			hello.MaxWireVersion = c.wire
			r, server := scripted(t, 1, hello, nil)
			r.outputs[0].made = c.made
			if err := r.insert(t.Context(), 0, []bson.Raw{raw(t, bson.D{{Key: "_id", Value: 1}})}); err != nil {
				t.Fatal(err)
			}
			_, data, _ := named(server, "insert")[0].Body.Lookup("collectionUUID").BinaryOK()
			if got := slices.Equal(data, uuid.Data); got != c.sent {
				t.Errorf("sent: %v, want %v", got, c.sent)
			}
		})
	}
}
