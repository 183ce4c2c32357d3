package rules_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/fleet/rules"
)

// TestLabels asks a scripted server, which answers each error without a label.
func TestLabels(t *testing.T) {
	var answer backendtest.Answer
	server := backendtest.New(t)
	server.SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.Name == "ping" {
			return backendtest.OK(bson.E{Key: "operationTime", Value: bson.Timestamp{T: 1, I: 1}})
		}
		return answer
	})
	state := rules.NewState(rules.Settings{})
	relay, err := rules.New(rules.Options{Target: server.Addr, Hooks: []rules.Hook{state.Hook()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { relay.Close() })
	c := dialServer(t, relay.Addr())

	failed := func(code int32) backendtest.Answer { return backendtest.Err(code, "Name", "text") }
	concern := func(code int32) backendtest.Answer {
		return backendtest.OK(bson.E{Key: "n", Value: int32(1)}, bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: code}}})
	}
	insert := []any{"insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}}, "lsid", sessionID(1), "$db", "l"}
	multi := []any{"update", "c", "updates", bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{}}, {Key: "multi", Value: true}}}, "$db", "l"}
	end := []any{"commitTransaction", 1, "lsid", sessionID(1), "txnNumber", int64(1), "autocommit", false, "$db", "admin"}
	statement := append(append([]any{}, insert...), "txnNumber", int64(1), "autocommit", false)
	txn := int64(10)
	for _, row := range []struct {
		name    string
		command []any
		numbers bool // the command gets a number of its own
		answer  func(int32) backendtest.Answer
		code    int32
		label   bool
	}{
		{"a retryable write, stepped down", insert, true, failed, 189, true},
		{"a retryable write, not primary", insert, true, failed, 10107, true},
		{"a retryable write, a duplicate", insert, true, failed, 11000, false},
		{"a retryable write, too slow", insert, true, failed, 262, true},
		{"a retryable write, unreachable", insert, true, failed, 6, true},
		{"a retryable write whose concern failed for a step-down", insert, true, concern, 189, true},
		{"a retryable write whose concern failed for a shutdown", insert, true, concern, 91, true},
		{"a retryable write whose concern was interrupted", insert, true, concern, 11602, true},
		{"a retryable write whose concern timed out", insert, true, concern, 64, false},
		{"a write without a number", insert, false, failed, 189, false},
		{"a write without a number, its concern", insert, false, concern, 189, false},
		{"a multi update", multi, false, concern, 91, false},
		{"a commit", end, false, failed, 189, true},
		{"a commit's concern", end, false, concern, 11600, true},
		{"a transaction's statement", statement, false, failed, 189, false},
	} {
		t.Run(fmt.Sprint(row.name, " ", row.code), func(t *testing.T) {
			command := row.command
			if row.numbers {
				txn++
				command = append(append([]any{}, command...), "txnNumber", txn)
			}
			answer = row.answer(row.code)
			c.t = t
			reply := c.run(command...)
			label, _ := reply.Lookup("errorLabels", "0").StringValueOK()
			if (label == "RetryableWriteError") != row.label {
				t.Errorf("answered %v, want the label: %v", reply, row.label)
			}
		})
	}
}
