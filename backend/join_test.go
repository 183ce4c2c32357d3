package backend

import (
	"testing"
	"time"
)

// On a busy server any of many connections may be without a reply for longer than stalledAfter. That does not make more of them without end: they
// would be silent for longer still.
func TestFewMoreForStalled(t *testing.T) {
	const requests = 20 * perConn // the width is enough
	p := newPool(&Backend{cfg: Config{MaxConns: 1000}}, "h:1")
	p.idle = []*conn{{}} // whoever wants another one may have it
	at := time.Hour
	fresh := &conn{shared: true, users: requests}
	fresh.progress.Store(int64(at))
	p.sharing, p.inFlight = []*conn{fresh}, requests
	for p.join(few, at, false) == nil {
		silent := &conn{shared: true, users: 1}
		silent.progress.Store(int64(at - 2*stalledAfter))
		if p.sharing, p.inFlight = append(p.sharing, silent), p.inFlight+1; len(p.sharing) > 200 {
			break
		}
	}
	if n := len(p.sharing); n <= enough || n > enough+enough/2 {
		t.Errorf("%d connections are shared, want %d and a few more", n, enough)
	}
	// With nobody silent there are as many as should be.
	for _, c := range p.sharing {
		c.progress.Store(int64(at))
	}
	p.sharing = p.sharing[:enough-1]
	if p.join(few, at, false) != nil {
		t.Errorf("%d of %d are shared, and no more are wanted", enough-1, enough)
	}
	p.sharing = p.sharing[:enough]
	if p.join(few, at, false) == nil {
		t.Errorf("%d are shared, and more are wanted", enough)
	}
}
