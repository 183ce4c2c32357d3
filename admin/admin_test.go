package admin_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/shardway/shardway/admin"
)

func TestProfiles(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- admin.Serve(ctx, l) }()
	for path, want := range map[string]string{"goroutine?debug=1": "goroutine profile:", "heap?debug=1": "heap profile:", "cmdline": "admin"} {
		resp, err := http.Get("http://" + l.Addr().String() + "/debug/pprof/" + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s without %q", path, resp.Status, want)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("after its context ended: %v", err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("still listening")
	}
}
