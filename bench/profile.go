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
	message := findMessage
	if b.wants("insert") && b.only != "" {
		message = insertMessage
	}
	const seconds = 6
	failed := make(chan error, 1)
	go func() {
		_, err := sample(w.shardway, load{conns: b.conns, message: message}, (seconds+2)*time.Second)
		failed <- err
	}()
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
