package main

import (
	"context"
	"fmt"
	"time"
)

// stubWorld is a stub server and the ways to it. The proxy's catalog is on a real server, the collection bench.c on the stub.
type stubWorld struct {
	direct, shardway target
	// haproxy and mongobetween have no name when they are not installed.
	haproxy, mongobetween target
}

func (b *bench) stubWorld(ctx context.Context, competitors bool, stubArgs ...string) (w stubWorld, err error) {
	stub, err := b.procs.stub(ctx, stubArgs...)
	if err != nil {
		return w, err
	}
	w.direct = target{name: "direct", addr: stub}
	servers, err := b.procs.servers(ctx, 1, fmt.Sprintf("catalog%d", len(b.procs.children)))
	if err != nil {
		return w, err
	}
	if w.shardway, err = b.procs.shardway(ctx, map[string]string{"a": servers[0].URI(), "stub": "mongodb://" + stub + "/?replicaSet=stub"}, b.proxyArgs...); err != nil {
		return w, err
	}
	if err := shard(ctx, w.shardway.addr, "stub", 2*halves); err != nil {
		return w, err
	}
	if !competitors {
		return w, nil
	}
	if w.haproxy, err = b.procs.haproxy(ctx, stub); err != nil {
		if _, err := optional(err); err != nil {
			return w, err
		}
	}
	if w.mongobetween, err = b.procs.mongobetween(ctx, stub); err != nil {
		if _, err := optional(err); err != nil {
			return w, err
		}
	}
	return w, nil
}

// targets are the ways that exist.
func (w stubWorld) targets() []target {
	all := []target{w.direct, w.shardway}
	for _, t := range []target{w.haproxy, w.mongobetween} {
		if t.name != "" {
			all = append(all, t)
		}
	}
	return all
}

// relays compares point reads and writes through the stub.
func (b *bench) relays(ctx context.Context) error {
	if !b.wants("find 1", "find 16", "find 64", "find 256", "insert 64", "update 64", "retryable 64") {
		return nil
	}
	w, err := b.stubWorld(ctx, true)
	if err != nil {
		return err
	}
	finds := []struct {
		conns int
		least float64
	}{{1, 0}, {16, 0}, {64, 1.2}, {256, 1.3}}
	for _, f := range finds {
		name := fmt.Sprintf("find %d", f.conns)
		if !b.wants(name) {
			continue
		}
		rs, err := compare(w.targets(), load{conns: f.conns, message: findMessage}, b.rounds, b.length)
		if err != nil {
			return err
		}
		b.show(name, rs)
		own, hap := rs["shardway"], rs["haproxy"]
		b.report(name+": ops/s to direct", own.rate/rs["direct"].rate, fmt.Sprintf("%.0f ops/s", own.rate))
		switch {
		case w.haproxy.name == "":
			b.skip(name+": to HAProxy", errNotInstalled)
		case f.conns == 1:
			b.value(name+": p50 to HAProxy", float64(own.p50)/float64(hap.p50), 1.1, false, own.p50.Round(time.Microsecond).String())
		case f.least == 0:
			b.report(name+": ops/s to HAProxy", own.rate/hap.rate, "")
		default:
			b.value(name+": ops/s to HAProxy", own.rate/hap.rate, f.least, true, "")
			b.value(name+": CPU to HAProxy", own.cpu/hap.cpu, 1, false, fmt.Sprintf("%.2f s/100k", own.cpu))
		}
		if f.conns == 64 {
			if w.mongobetween.name == "" {
				b.skip(name+": ops/s to mongobetween", errNotInstalled)
			} else {
				b.value(name+": ops/s to mongobetween", own.rate/rs["mongobetween"].rate, 4, true, "")
			}
		}
	}
	writes := []struct {
		name    string
		message func(int) ([]byte, int)
	}{{"insert 64", insertMessage}, {"update 64", updateMessage}, {"retryable 64", retryableMessage}}
	for _, m := range writes {
		if !b.wants(m.name) {
			continue
		}
		targets := []target{w.shardway, w.direct}
		if w.haproxy.name != "" {
			targets = append(targets, w.haproxy)
		}
		rs, err := compare(targets, load{conns: 64, message: m.message}, b.rounds, b.length)
		if err != nil {
			return err
		}
		b.show(m.name, rs)
		if w.haproxy.name == "" {
			b.skip(m.name+": ops/s to HAProxy", errNotInstalled)
			continue
		}
		b.value(m.name+": ops/s to HAProxy", rs["shardway"].rate/rs["haproxy"].rate, 1, true, fmt.Sprintf("%.2f s/100k", rs["shardway"].cpu))
	}
	return nil
}
