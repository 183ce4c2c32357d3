package backend_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
)

// Nobody but who examines it uses a barred backend, by whatever way, until it is barred no more.
func TestBarredBackendIsSentNothing(t *testing.T) {
	s := backendtest.New(t)
	b := open(t, backend.Config{URI: s.URI(), SelectionTimeout: 20 * time.Second})
	ping := bson.D{{Key: "ping", Value: 1}}
	ways := map[string]func() error{
		"our own connections": func() error { _, err := b.Run(within(t), "admin", ping); return err },
		"a host by name": func() error {
			_, err := b.RunOn(within(t), backend.Target{Host: s.Addr()}, "admin", ping)
			return err
		},
		"the driver's client": func() error { return b.Client().Database("admin").RunCommand(within(t), ping).Err() },
	}
	for name, way := range ways {
		if err := way(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	because := errors.New("it is too old")
	b.Bar(because)
	s.Forget()
	for name, way := range ways {
		began := time.Now()
		if err := way(); err == nil || !strings.Contains(err.Error(), "it is too old") {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("%s: the error took %v", name, d)
		}
	}
	var unsent *backend.UnsentError
	if _, err := b.Run(within(t), "admin", ping); !errors.As(err, &unsent) || !errors.Is(err, because) {
		t.Errorf("got %v, want an UnsentError with the cause", err)
	}
	if n := len(s.Received()); n != 0 {
		t.Errorf("%d commands were sent", n)
	}
	if _, err := b.Run(backend.Examining(within(t)), "admin", ping); err != nil {
		t.Errorf("who examines it: %v", err)
	}
	if err := b.Client().Database("admin").RunCommand(backend.Examining(within(t)), ping).Err(); err != nil {
		t.Errorf("who examines it by the driver's client: %v", err)
	}
	b.Bar(nil)
	for name, way := range ways {
		if err := way(); err != nil {
			t.Errorf("%s, barred no more: %v", name, err)
		}
	}
}
