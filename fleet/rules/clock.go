package rules

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// maxDrift is how far a clock may be moved ahead of the wall clock.
const maxDrift = 365 * 24 * time.Hour

// unsigned is the signature of a server without access control.
var unsigned = bson.D{{Key: "hash", Value: bson.Binary{Data: make([]byte, 20)}}, {Key: "keyId", Value: int64(0)}}

// clusterTime takes a client's time over and tells the clock with each reply.
func (s *State) clusterTime(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if s.serverTime().IsZero() && !r.legacy && !r.Is("hello", "ismaster") {
		reply, err := r.Ask(marshal(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})) // what is refused tells the time too
		if err != nil {
			r.Cut()
			return nil, nil
		}
		s.noteTimes(reply)
	}
	if d, ok := r.Lookup("$clusterTime").DocumentOK(); ok {
		t := timeOf(d.Lookup("clusterTime"))
		now := s.settings.Now().Unix()
		if int64(t.T)-now > int64(maxDrift/time.Second) {
			return refuse(wire.ClusterTimeFailsRateLimiter, "New cluster time, %d, is too far from this node's wall clock time, %d.", t.T, now), s.tellTime
		}
		s.mu.Lock()
		if t.After(s.clock) {
			s.clock = t
		}
		s.mu.Unlock()
	}
	return nil, s.tellTime
}

// tellTime learns from a reply's times, and adds or raises $clusterTime where a mongod would.
func (s *State) tellTime(reply bson.Raw) bson.Raw {
	s.noteTimes(reply)
	s.mu.Lock()
	clock, server := s.clock, s.server
	s.mu.Unlock()
	operation, cluster := replyTimes(reply)
	if !operation.IsZero() && (cluster == clock || !clock.After(server)) {
		return reply // as new as any that the server has told
	}
	if clock.IsZero() {
		return reply // nobody has told a time yet: the handshake is the first
	}
	fields := []bson.E{{Key: "$clusterTime", Value: bson.D{{Key: "clusterTime", Value: clock}, {Key: "signature", Value: unsigned}}}}
	if operation.IsZero() {
		fields = append(fields, bson.E{Key: "operationTime", Value: server})
	}
	return with(reply, fields...)
}

// afterClusterTime refuses what is ahead of the clock. A primary that is asked for a time between its
// last write and its clock writes a no-op and answers, so the stand-in is not asked to wait for it.
func (s *State) afterClusterTime(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	_, after := readConcern(r)
	if after.IsZero() {
		return nil, nil
	}
	s.mu.Lock()
	clock, server := s.clock, s.server
	s.mu.Unlock()
	if after.After(clock) {
		return refuse(wire.InvalidOptions, "readConcern afterClusterTime value must not be greater than the current clusterTime. "+
			"Requested clusterTime: { ts: %s }; current clusterTime: { ts: %s }", quoteTime(after), quoteTime(clock)), nil
	}
	if !after.After(server) {
		return nil, nil
	}
	concern, _ := r.Lookup("readConcern").DocumentOK()
	r.SetBody(with(r.Body, bson.E{Key: "readConcern", Value: without(concern, "afterClusterTime")}))
	return nil, func(reply bson.Raw) bson.Raw {
		if codeOf(reply) != 0 {
			return reply
		}
		return with(reply, bson.E{Key: "operationTime", Value: after})
	}
}
