package rules

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

const (
	retryableLabel = "RetryableWriteError"
	transientLabel = "TransientTransactionError"
)

// retriable are the codes of the category RetriableError in the server's error_codes.yml.
var retriable = []wire.Code{
	wire.HostUnreachable, wire.HostNotFound, wire.NetworkTimeout, wire.ShutdownInProgress, wire.ReadConcernMajorityNotAvailableYet,
	wire.PrimarySteppedDown, wire.NetworkInterfaceExceededTimeLimit, wire.ExceededTimeLimit, wire.ConnectionPoolExpired, wire.SocketException, wire.NotWritablePrimary,
	wire.InterruptedAtShutdown, wire.InterruptedDueToReplStateChange, wire.NotPrimaryNoSecondaryOk, wire.NotPrimaryOrSecondary,
}

// labels adds RetryableWriteError to what it belongs to: writes with a number of their own, and the
// ends of transactions.
func (s *State) labels(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if r.Lookup("txnNumber").IsZero() {
		return nil, nil
	}
	autocommit := r.Lookup("autocommit")
	if !autocommit.IsZero() && !r.Is("committransaction", "aborttransaction") {
		return nil, nil
	}
	return nil, func(reply bson.Raw) bson.Raw {
		code := codeOf(reply)
		concern := wire.Code(0)
		if d, ok := reply.Lookup("writeConcernError").DocumentOK(); ok {
			concern = wire.Code(intOf(d.Lookup("code")))
		}
		if !slices.Contains(retriable, code) && !slices.Contains(retriable, concern) {
			return reply
		}
		return labelled(reply, retryableLabel)
	}
}

func labelsOf(reply bson.Raw) []string {
	arr, ok := reply.Lookup("errorLabels").ArrayOK()
	if !ok {
		return nil
	}
	var labels []string
	values, _ := arr.Values()
	for _, v := range values {
		if l, ok := v.StringValueOK(); ok {
			labels = append(labels, l)
		}
	}
	return labels
}

func labelled(reply bson.Raw, label string) bson.Raw {
	labels := labelsOf(reply)
	if slices.Contains(labels, label) {
		return reply
	}
	return with(reply, bson.E{Key: "errorLabels", Value: append(labels, label)})
}

func unlabelled(reply bson.Raw, label string) bson.Raw {
	labels := slices.DeleteFunc(labelsOf(reply), func(l string) bool { return l == label })
	if len(labels) == 0 {
		return without(reply, "errorLabels")
	}
	return with(reply, bson.E{Key: "errorLabels", Value: labels})
}

// unknownCommit adds the write concern's error to that of the transaction, which is then not final.
func (s *State) unknownCommit(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	concern, ok := r.Lookup("writeConcern").DocumentOK()
	if !ok || intOf(concern.Lookup("w")) <= int64(s.settings.Members) {
		return nil, nil
	}
	w, timeout := copyValue(concern.Lookup("w")), int32(intOf(concern.Lookup("wtimeout")))
	return nil, func(reply bson.Raw) bson.Raw {
		if codeOf(reply) != wire.NoSuchTransaction {
			return reply
		}
		return with(unlabelled(reply, transientLabel), bson.E{Key: "writeConcernError", Value: bson.D{
			{Key: "code", Value: int32(wire.UnsatisfiableWriteConcern)}, {Key: "codeName", Value: wire.UnsatisfiableWriteConcern.Name()},
			{Key: "errmsg", Value: "Not enough data-bearing nodes"},
			{Key: "errInfo", Value: bson.D{{Key: "writeConcern", Value: bson.D{{Key: "w", Value: w}, {Key: "wtimeout", Value: timeout}, {Key: "provenance", Value: "clientSupplied"}}}}}}})
	}
}
