package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	idleClients = 10_000
	busyClients = 300
)

// idle measures what many clients cost of which few do anything.
func (b *bench) idle(ctx context.Context) error {
	if !b.wants("idle clients: KB each", "busy of 10,000 clients: backend connections") {
		return nil
	}
	w, err := b.stubWorld(ctx, false)
	if err != nil {
		return err
	}
	if _, err := sample(w.shardway, load{conns: 8, message: findMessage}, b.length); err != nil {
		return err
	}
	before := resident(w.shardway.pid)
	conns := make([]net.Conn, 0, idleClients)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	buf := make([]byte, 64<<10)
	msg, _ := findMessage(1)
	for range idleClients {
		c, err := net.Dial("tcp", w.shardway.addr)
		if err != nil {
			return fmt.Errorf("after %d clients: %w", len(conns), err)
		}
		conns = append(conns, c)
		if _, err := c.Write(msg); err != nil {
			return err
		}
		if _, err := readReply(c, buf); err != nil {
			return err
		}
	}
	time.Sleep(3 * time.Second)
	each := float64(resident(w.shardway.pid)-before) / 1024 / idleClients
	b.value("idle clients: KB each", each, 5, false, "resident, after one request each")

	if _, err := sample(w.shardway, load{conns: busyClients, message: findMessage}, b.length); err != nil {
		return err
	}
	b.value("busy of 10,000 clients: backend connections", float64(established(w.direct.addr)), 64, false, fmt.Sprintf("%d busy", busyClients))
	return nil
}

// established counts the connections to an address of this machine, those of monitors among them.
func established(addr string) (n int) {
	_, port, _ := net.SplitHostPort(addr)
	number, _ := strconv.Atoi(port)
	suffix := fmt.Sprintf(":%04X", number)
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(table), "\n") {
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[2], suffix) && f[3] == "01" {
			n++
		}
	}
	return n
}
