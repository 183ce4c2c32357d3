package main

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// slow measures where sharing connections would hurt: before a backend that makes requests wait, and handles each connection's one after the other.
func (b *bench) slow(ctx context.Context) error {
	if b.wants("writes that wait 10 ms, 64", "writes that wait 10 ms, 256") {
		w, err := b.stubWorld(ctx, true, "-write-delay", "10ms")
		if err != nil {
			return err
		}
		w.mongobetween = target{} // what it makes of 1 KB is compared in relays
		for _, conns := range []int{64, 256} {
			name := fmt.Sprintf("writes that wait 10 ms, %d", conns)
			if !b.wants(name) {
				continue
			}
			l := load{conns: conns, message: insertMessage}
			if _, err := sample(w.shardway, l, 3*time.Second); err != nil { // it has ten seconds to learn
				return err
			}
			rs, err := compare(w.targets(), l, b.rounds, b.length)
			if err != nil {
				return err
			}
			b.show(name, rs)
			b.value(name+": ops/s to direct", rs["shardway"].rate/rs["direct"].rate, 0.9, true, "")
			if w.haproxy.name != "" { // what is lost to another process beside client and stub, whatever it does
				b.report(name+": HAProxy's to direct", rs["haproxy"].rate/rs["direct"].rate, fmt.Sprintf("%.0f ops/s", rs["haproxy"].rate))
			}
		}
	}
	if !b.wants("1 ms reads beside 100 ms scans") {
		return nil
	}
	w, err := b.stubWorld(ctx, false)
	if err != nil {
		return err
	}
	l := load{conns: 16, message: waitingFind(1, true), otherConns: 4, other: func(i int) []byte { m, _ := waitingFind(100, false)(i); return m }}
	if _, err := sample(w.shardway, l, 3*time.Second); err != nil {
		return err
	}
	rs, err := compare([]target{w.direct, w.shardway}, l, b.rounds, b.length)
	if err != nil {
		return err
	}
	name := "1 ms reads beside 100 ms scans"
	b.show(name, rs)
	b.value(name+": p99 to direct", float64(rs["shardway"].p99)/float64(rs["direct"].p99), 2, false, rs["shardway"].p99.Round(time.Microsecond).String())
	return nil
}

// waitingFind is a find for which the stub waits ms milliseconds: of one document by its key and _id, or by another field, which takes a scan.
func waitingFind(ms int32, byID bool) func(int) ([]byte, int) {
	return func(i int) ([]byte, int) {
		filter := bson.D{{Key: "k", Value: stubKey(i)}, {Key: "_id", Value: i}}
		if !byID {
			filter[1].Key = "unindexed"
		}
		cmd := bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: filter}, {Key: "limit", Value: int64(1)}, {Key: "comment", Value: ms}}
		return message(append(cmd, session()...), ""), 0
	}
}
