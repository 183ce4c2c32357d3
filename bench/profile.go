package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// profile writes a CPU profile of the proxy while so many clients find one document each.
func (b *bench) profile(ctx context.Context, file string) error {
	admin, err := freePort()
	if err != nil {
		return err
	}
	b.proxyArgs = []string{"--admin-listen", admin}
	w, err := b.stubWorld(ctx, false)
	if err != nil {
		return err
	}
	const seconds = 6
	b.length = (seconds + 2) * time.Second
	failed := make(chan error, 1)
	go func() { failed <- b.profiled(w.shardway) }()
	time.Sleep(time.Second)
	resp, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", admin, seconds))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, resp.Body); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return <-failed
}

// profiled is what goes on during a profile: finds, or what -only names.
func (b *bench) profiled(t target) error {
	message := findMessage
	switch b.only {
	case "insertMany":
		_, err := b.repeat(t.addr, batch("c", false, documentsPerBatch, func(i int) any { return i }, stubKey))
		return err
	case "scan", "sorted":
		for end := time.Now().Add(b.length); time.Now().Before(end); {
			if _, err := b.scan(t.addr, b.only == "sorted", 1); err != nil {
				return err
			}
		}
		return nil
	case "insert":
		message = insertMessage
	case "update":
		message = updateMessage
	case "retryable":
		message = retryableMessage
	}
	_, err := sample(t, load{conns: b.conns, message: message}, b.length)
	return err
}
