package backend_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
)

// valid is what a request is sent under, as long as it is true.
type valid bool

func (v valid) Valid() bool { return bool(v) }

// TestWhatARequestIsSentUnder: a request that had to wait for a server is not sent when what it was to be sent under has ended. One that found a server at once is the
// caller's to have looked at.
func TestWhatARequestIsSentUnder(t *testing.T) {
	for name, tt := range map[string]struct {
		down  bool // when the request comes
		while backend.Validity
		sent  bool
	}{
		"it waited, and its validity has ended": {true, valid(false), false},
		"it waited, and is valid":               {true, valid(true), true},
		"it waited, under nothing":              {true, nil, true},
		"it did not wait":                       {false, valid(false), true},
	} {
		t.Run(name, func(t *testing.T) {
			s := backendtest.New(t)
			if tt.down {
				s.Stop()
			}
			b := open(t, backend.Config{URI: s.URI()})
			if !tt.down {
				if err := b.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			done := make(chan error, 1)
			go func() {
				reply, err := b.Do(t.Context(), backend.Request{Message: message(t, find), While: tt.while})
				if err == nil {
					reply.Release()
				}
				done <- err
			}()
			if tt.down {
				for backend.SelectingForTest(b) == 0 {
					time.Sleep(time.Millisecond)
				}
				s.Restart()
			}
			err := <-done
			if lapsed := errors.Is(err, backend.ErrLapsed); lapsed == tt.sent || tt.sent && err != nil {
				t.Errorf("%v", err)
			}
			if got := len(s.Received()); (got == 1) != tt.sent {
				t.Errorf("%d requests arrived", got)
			}
		})
	}
}
