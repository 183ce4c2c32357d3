package backendtest

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// refusal is what a mongod refuses of a command's read concern, whatever a script would answer; nil
// for nothing. s.mu is held.
//
// Measured on a mongod 6.3: config.transactions takes local, majority and linearizable, but neither
// snapshot nor majority with a time; only local, majority and snapshot go with a time; and a time
// above the server's own clock is refused at once.
func (s *Server) refusal(cmd Command) *Answer {
	concern, ok := cmd.Body.Lookup("readConcern").DocumentOK()
	if !ok {
		return nil
	}
	level, _ := concern.Lookup("level").StringValueOK()
	var after bson.Timestamp
	var causal bool
	after.T, after.I, causal = concern.Lookup("afterClusterTime").TimestampOK()
	switch {
	case causal && (level == "linearizable" || level == "available"):
		return refused(72, "InvalidOptions", "afterClusterTime field can be set only if level is equal to majority, local, or snapshot")
	case cmd.DB == "config" && cmd.Name == "find" && cmd.Body.Lookup("find").StringValue() == "transactions" && (level == "snapshot" || causal && level == "majority"):
		return refused(5557800, "Location5557800", "Snapshot reads and causal consistent majority reads on config.transactions are not supported")
	case causal && !s.clock.IsZero():
		var now bson.Timestamp
		now.T, now.I, _ = cmd.Body.Lookup("$clusterTime", "clusterTime").TimestampOK()
		if now.After(s.clock) {
			s.clock = now
		}
		if after.After(s.clock) {
			return refused(72, "InvalidOptions", fmt.Sprintf("readConcern afterClusterTime value must not be greater than the current clusterTime. Requested clusterTime: "+
				"{ ts: Timestamp(%d, %d) }; current clusterTime: { ts: Timestamp(%d, %d) }", after.T, after.I, s.clock.T, s.clock.I))
		}
	}
	return nil
}

func refused(code int32, name, text string) *Answer {
	a := Err(code, name, text)
	return &a
}
