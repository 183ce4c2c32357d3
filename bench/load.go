package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// target is one way to a server.
type target struct {
	name string
	addr string
	pid  int // of the process between, 0 for none
}

// load is what the clients of one sample do: each has its connection and one request in flight.
type load struct {
	conns int
	// message makes the message that client i sends first; txn, if not 0, is where in it a transaction number is counted up.
	message func(i int) (msg []byte, txn int)
	// other, if not nil, is a second kind of client, otherConns of them, which are not counted.
	other      func(i int) []byte
	otherConns int
}

// result is what one sample gave.
type result struct {
	rate     float64 // operations a second
	p50, p99 time.Duration
	cpu      float64 // seconds of the process between per 100,000 operations
}

// sample runs a load for so long. The first tenth warms up and is not counted.
func sample(t target, l load, length time.Duration) (result, error) {
	warm := time.Now().Add(length / 10)
	end := warm.Add(length)
	lats := make([][]time.Duration, l.conns)
	within := make([]int, l.conns)
	errs := make([]error, l.conns)
	var counted, beside sync.WaitGroup
	for i := range l.otherConns {
		beside.Go(func() { _, _, _ = client(t.addr, l.other(i), 0, warm, end) })
	}
	for i := range l.conns {
		msg, txn := l.message(i)
		counted.Go(func() { lats[i], within[i], errs[i] = client(t.addr, msg, txn, warm, end) })
	}
	time.Sleep(time.Until(warm))
	used := cpu(t.pid)
	time.Sleep(time.Until(end))
	used = cpu(t.pid) - used
	counted.Wait()
	beside.Wait()
	for _, err := range errs {
		if err != nil {
			return result{}, fmt.Errorf("%s with %d connections: %w", t.name, l.conns, err)
		}
	}
	all := slices.Concat(lats...)
	slices.Sort(all)
	done := 0
	for _, n := range within {
		done += n
	}
	if done == 0 {
		return result{}, fmt.Errorf("%s with %d connections: no operation ended in time", t.name, l.conns)
	}
	return result{
		rate: float64(done) / length.Seconds(), p50: all[len(all)/2], p99: all[len(all)*99/100],
		cpu: used.Seconds() / float64(done) * 100_000,
	}, nil
}

// client sends msg again and again until end, and returns how long each took that was answered after warm, and how many of them were answered before end.
func client(addr string, msg []byte, txn int, warm, end time.Time) (lats []time.Duration, within int, err error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(end.Add(20 * time.Second))
	msg = slices.Clone(msg)
	buf := make([]byte, 64<<10)
	lats = make([]time.Duration, 0, 1024)
	for number, at := int64(1), time.Now(); at.Before(end); number++ {
		if txn != 0 {
			binary.LittleEndian.PutUint64(msg[txn:], uint64(number))
		}
		if _, err := c.Write(msg); err != nil {
			return lats, within, err
		}
		reply, err := readReply(c, buf)
		if err != nil {
			return lats, within, err
		}
		if failed(reply) {
			return lats, within, fmt.Errorf("an error reply: %q", reply)
		}
		now := time.Now()
		if now.After(warm) { // also what was sent before: a client that is served once in a while counts with what it waited
			lats = append(lats, now.Sub(at))
			if now.Before(end) {
				within++
			}
		}
		at = now
	}
	return lats, within, nil
}

// readReply reads one message into buf, which it must fit into.
func readReply(c net.Conn, buf []byte) ([]byte, error) {
	have := 0
	for {
		n, err := c.Read(buf[have:])
		if err != nil {
			return nil, err
		}
		have += n
		if have < 4 {
			continue
		}
		size := int(binary.LittleEndian.Uint32(buf))
		if size > len(buf) {
			return nil, fmt.Errorf("a reply of %d bytes", size)
		}
		if have >= size {
			return buf[:size], nil
		}
	}
}

// compare takes samples of a load through each target, in random order each round, and returns each target's median.
func compare(targets []target, l load, rounds int, length time.Duration) (map[string]result, error) {
	all := map[string][]result{}
	for range rounds {
		order := slices.Clone(targets)
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, t := range order {
			r, err := sample(t, l, length)
			if err != nil {
				return nil, err
			}
			all[t.name] = append(all[t.name], r)
		}
	}
	medians := map[string]result{}
	for name, rs := range all {
		medians[name] = result{
			rate: medianOf(rs, func(r result) float64 { return r.rate }),
			cpu:  medianOf(rs, func(r result) float64 { return r.cpu }),
			p50:  time.Duration(medianOf(rs, func(r result) float64 { return float64(r.p50) })),
			p99:  time.Duration(medianOf(rs, func(r result) float64 { return float64(r.p99) })),
		}
	}
	return medians, nil
}

func medianOf(rs []result, f func(result) float64) float64 {
	v := make([]float64, len(rs))
	for i, r := range rs {
		v[i] = f(r)
	}
	return median(v)
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return 0
	}
	return s[len(s)/2]
}
