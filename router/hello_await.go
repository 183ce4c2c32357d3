package router

import (
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// awaitArgs are the fields of a hello that may wait (mongos-behaviour §2.2).
type awaitArgs struct {
	given     bool
	processID bson.ObjectID
	counter   int64
	// most is maxAwaitTimeMS.
	most time.Duration
}

// maxAwait bounds what a hello may wait, whatever the client says.
const maxAwait = time.Hour

func parseAwait(cmd bson.Raw) (a awaitArgs, err error) {
	doc := bsoncore.Document(cmd)
	version, versionErr := doc.LookupErr("topologyVersion")
	most, mostErr := doc.LookupErr("maxAwaitTimeMS")
	switch {
	case versionErr != nil && mostErr != nil:
		return a, nil
	case versionErr != nil:
		return a, wire.Errorf(51760, "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'")
	case mostErr != nil:
		return a, wire.Errorf(51760, "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'")
	}
	ms, ok := most.AsFloat64OK()
	if !ok {
		return a, typeMismatch("maxAwaitTimeMS", most, "long")
	}
	if ms < 0 || math.IsNaN(ms) {
		return a, wire.Errorf(51759, "maxAwaitTimeMS must be a non-negative integer")
	}
	tv, ok := version.DocumentOK()
	if !ok {
		return a, typeMismatch("topologyVersion", version, "object")
	}
	for _, field := range [...]string{"processId", "counter"} {
		if _, err := tv.LookupErr(field); err != nil {
			return a, wire.Errorf(40414, "BSON field 'topologyVersion.%s' is missing but a required field", field)
		}
	}
	if a.processID, ok = tv.Lookup("processId").ObjectIDOK(); !ok {
		return a, typeMismatch("topologyVersion.processId", tv.Lookup("processId"), "objectId")
	}
	if a.counter, ok = tv.Lookup("counter").AsInt64OK(); !ok {
		return a, typeMismatch("topologyVersion.counter", tv.Lookup("counter"), "long")
	}
	if a.counter < 0 {
		return a, wire.Errorf(51758, "topologyVersion counter must be non-negative")
	}
	a.given, a.most = true, time.Duration(min(ms, float64(maxAwait/time.Millisecond)))*time.Millisecond
	return a, nil
}

// checkCounter refuses a counter of ours that we have not reached.
func (r *Router) checkCounter(a awaitArgs) error {
	if now := r.topologyCounter(); a.given && a.processID == r.processID && a.counter > now {
		return wire.Errorf(51761, "Received a topology version with counter: %d which is greater than the server topology version counter: %d", a.counter, now)
	}
	return nil
}

// knows reports whether the client knows the topology as it is, so that there is nothing to tell it yet.
func (r *Router) knows(a awaitArgs) bool {
	return a.given && a.processID == r.processID && a.counter == r.topologyCounter()
}
