package router

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardway/shardway/wire"
)

// closing is a source that only ends.
type closing struct{ closed bool }

func (*closing) fill(context.Context, *Request, *batch, int) (bool, error) { return true, nil }
func (s *closing) close()                                                  { s.closed = true }

// TestIdleCursorsEnd: after ten minutes without a getMore, and not while one runs, or with noCursorTimeout.
func TestIdleCursorsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cs, q := &cursors{}, &Request{}
		swept := make(chan struct{})
		go func() { defer close(swept); cs.sweep(ctx) }()
		open := func(forever bool) (*cursor, *closing) {
			src := &closing{}
			c, err := cs.open(q, "d.c", src, nil, forever)
			if err != nil {
				t.Fatal(err)
			}
			return c, src
		}
		idle, idleSrc := open(false)
		used, usedSrc := open(false)
		busy, busySrc := open(false)
		forever, foreverSrc := open(true)
		for _, c := range []*cursor{idle, used, forever} {
			cs.release(c, false)
		}
		time.Sleep(9 * time.Minute)
		if _, err := cs.take(q, used.id, "d.c"); err != nil {
			t.Fatal(err)
		}
		cs.release(used, false)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !idleSrc.closed || usedSrc.closed || busySrc.closed || foreverSrc.closed {
			t.Errorf("after 11 minutes: idle closed %v, used %v, busy %v, without a limit %v", idleSrc.closed, usedSrc.closed, busySrc.closed, foreverSrc.closed)
		}
		if _, err := cs.take(q, idle.id, "d.c"); wire.AsError(err).Code != wire.CursorNotFound {
			t.Errorf("its getMore: %v", err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if !usedSrc.closed || busySrc.closed || foreverSrc.closed || cs.count() != 2 {
			t.Errorf("an hour later: used closed %v, busy %v, without a limit %v, %d open", usedSrc.closed, busySrc.closed, foreverSrc.closed, cs.count())
		}
		cs.release(busy, true)
		cancel()
		<-swept
	})
}
