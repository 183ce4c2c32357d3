package router

import (
	"context"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// everywhere is a Reshaper that runs DDL commands, and keeps what they came to.
type everywhere struct {
	Reshaper
	came error
}

func (e *everywhere) Everywhere(ctx context.Context, _ string, _ []*partition.Part, _ bson.Raw, do func(context.Context) error) error {
	e.came = do(ctx)
	return e.came
}

// notConfirmed is how a mongod answers a command that it has executed and that no majority has.
func notConfirmed() backendtest.Answer {
	return backendtest.OK(bson.E{Key: "writeConcernError", Value: d("code", int32(64), "codeName", "WriteConcernFailed",
		"errmsg", "waiting for replication timed out", "errInfo", d("wtimeout", true))})
}

// TestDDLThatIsNotConfirmed: where a DDL command was done on all partitions and a majority has not
// confirmed it on one, the reply has the writeConcernError at its top, as a mongos' has, and
// whoever keeps the record of the command is told.
func TestDDLThatIsNotConfirmed(t *testing.T) {
	for _, cmd := range []bson.D{
		d("collMod", "c", "validator", bson.D{}),
		d("createIndexes", "c", "indexes", bson.A{d("key", d("a", 1), "name", "a_1")}),
		d("dropIndexes", "c", "index", "a_1"),
	} {
		for name, late := range map[string][]int{"one": {1}, "two": {1, 2}, "none": nil} {
			t.Run(cmd[0].Key+"/"+name, func(t *testing.T) {
				e, servers := scriptEnv(t)
				e.shard("c", "k", 3)
				kept := &everywhere{}
				e.router.cfg.Reshaper = kept
				for i, s := range servers {
					s.SetScript(func(c backendtest.Command) backendtest.Answer {
						switch c.Name {
						case "listIndexes":
							return backendtest.OK(bson.E{Key: "cursor", Value: d("firstBatch", bson.A{d("v", 2, "key", d("k", 1), "name", "k_1")}, "id", int64(0), "ns", "x.y")})
						case cmd[0].Key:
							for _, l := range late {
								if l == i {
									return notConfirmed()
								}
							}
						}
						return backendtest.OK()
					})
				}
				reply, err := e.replyTo(cmd)
				if err != nil {
					t.Fatal(err)
				}
				concern, there := reply.Lookup("writeConcernError").DocumentOK()
				if there != (late != nil) {
					t.Fatalf("the reply is %v", reply)
				}
				var unconfirmed *backend.UnconfirmedError
				if errors.As(kept.came, &unconfirmed) != there {
					t.Errorf("it came to %v", kept.came)
				}
				if !there {
					return
				}
				if concern.Lookup("code").Int32() != 64 || concern.Lookup("errmsg").StringValue() != "waiting for replication timed out at b1" ||
					concern.Lookup("codeName").StringValue() != "WriteConcernFailed" || !concern.Lookup("errInfo", "wtimeout").Boolean() {
					t.Errorf("the write concern error is %v", concern)
				}
				if _, err := reply.LookupErr("raw", e.router.hostOf("b1"), "writeConcernError"); err != nil {
					t.Errorf("raw has it not: %v", reply)
				}
			})
		}
	}
}

// replyTo runs a command and returns the reply as it is sent, with an error only where that has
// ok:0.
func (e *writeEnv) replyTo(cmd bson.D) (bson.Raw, error) {
	e.t.Helper()
	raw, err := e.client.Database(e.db).RunCommand(e.t.Context(), cmd).Raw()
	if len(raw) > 0 && wire.ReplyOK(raw) {
		return raw, nil
	}
	return raw, err
}

// TestDropsOfADatabaseAreConfirmed: what a dropped database has besides collections is dropped with
// a majority's confirmation, and not taken for gone without.
func TestDropsOfADatabaseAreConfirmed(t *testing.T) {
	for name, c := range map[string]struct {
		answer backendtest.Answer
		code   wire.Code
	}{
		"done":          {backendtest.OK(), 0},
		"gone already":  {backendtest.Err(26, "NamespaceNotFound", "ns not found"), 0},
		"not confirmed": {notConfirmed(), wire.WriteConcernFailed},
	} {
		t.Run(name, func(t *testing.T) {
			e, servers := scriptEnv(t)
			servers[0].SetScript(func(backendtest.Command) backendtest.Answer { return c.answer })
			info, err := bson.Marshal(d("name", "v", "type", "view"))
			if err != nil {
				t.Fatal(err)
			}
			err = e.router.dropListed(t.Context(), e.db, "b0", info)
			if (err != nil) != (c.code != 0) || err != nil && wire.AsError(err).Code != c.code {
				t.Errorf("%v", err)
			}
			if got := servers[0].Received()[0].Body.Lookup("writeConcern", "w"); got.StringValue() != "majority" {
				t.Errorf("the drop's write concern is %v", got)
			}
		})
	}
}
