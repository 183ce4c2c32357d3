package backend

import (
	"context"
	"sync"
)

// Line is a context for the calls of one client, one after the other: it ends like its parent, and what it costs a call to hear of that is a mutex.
// With any other context Start registers itself anew for each request. A second call at the same time is allowed and pays that price.
type Line struct {
	context.Context
	stop func() bool

	mu   sync.Mutex
	call *Call // the call in flight
}

// NewLine makes a Line of parent. Close it.
func NewLine(parent context.Context) *Line {
	l := &Line{Context: parent}
	l.stop = context.AfterFunc(parent, l.interrupt)
	return l
}

// Close ends the Line's own part; the context it was made of goes on.
func (l *Line) Close() { l.stop() }

func (l *Line) interrupt() {
	l.mu.Lock()
	if l.call != nil {
		l.call.interrupt()
	}
	l.mu.Unlock()
}

// watch has the call hear of the Line's end; false when another call has it, or it has ended.
func (l *Line) watch(k *Call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.call != nil || l.Err() != nil {
		return false
	}
	l.call = k
	return true
}

// unwatch ends watch. After it nothing of the Line touches the call.
func (l *Line) unwatch() {
	l.mu.Lock()
	l.call = nil
	l.mu.Unlock()
}
