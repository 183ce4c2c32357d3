package backend_test

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/wire"
)

// TestRunTellsWhatIsNotConfirmed: a reply with ok:1 and a writeConcernError is an error of its own
// kind, and comes with the reply: the command was executed, and may be undone.
func TestRunTellsWhatIsNotConfirmed(t *testing.T) {
	concern := func(code int32, name, text string) bson.E {
		return bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: code}, {Key: "codeName", Value: name}, {Key: "errmsg", Value: text},
			{Key: "errInfo", Value: bson.D{{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "provenance", Value: "clientSupplied"}}}}}}}
	}
	for name, c := range map[string]struct {
		answer      backendtest.Answer
		code        wire.Code // 0: no error
		unconfirmed bool
	}{
		"ok":                 {backendtest.OK(), 0, false},
		"refused":            {backendtest.Err(26, "NamespaceNotFound", "ns not found"), wire.NamespaceNotFound, false},
		"timed out":          {backendtest.OK(concern(64, "WriteConcernFailed", "waiting for replication timed out")), wire.WriteConcernFailed, true},
		"never to be met":    {backendtest.OK(concern(100, "UnsatisfiableWriteConcern", "Not enough data-bearing nodes")), wire.UnsatisfiableWriteConcern, true},
		"a server shut down": {backendtest.OK(concern(91, "ShutdownInProgress", "Replication is being shut down")), wire.HostUnreachable, true},
		"without a text":     {backendtest.OK(bson.E{Key: "writeConcernError", Value: bson.D{}}), wire.WriteConcernFailed, true},
	} {
		t.Run(name, func(t *testing.T) {
			server := backendtest.New(t)
			server.SetScript(func(backendtest.Command) backendtest.Answer { return c.answer })
			b := open(t, backend.Config{URI: server.URI()})
			reply, err := b.Run(within(t), "d", bson.D{{Key: "create", Value: "c"}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
			var unconfirmed *backend.UnconfirmedError
			if errors.As(err, &unconfirmed) != c.unconfirmed {
				t.Errorf("%v", err)
			}
			if (err != nil) != (c.code != 0) || err != nil && wire.AsError(err).Code != c.code {
				t.Errorf("%v, want the code %d", err, c.code)
			}
			if len(reply) == 0 || c.unconfirmed && !wire.ReplyOK(reply) {
				t.Errorf("the reply is %v", reply)
			}
		})
	}
}
