package router

import (
	"sync"
	"time"
)

// limitedLogEvery is how often the log says one thing of one backend.
const limitedLogEvery = time.Minute

// limitedLog keeps the log from saying the same of a backend with every request. Its zero value is
// ready for use.
type limitedLog struct {
	mu   sync.Mutex
	said map[string]time.Time // by backend, when it was said last
}

// may reports whether it is to be said of a backend now.
func (l *limitedLog) may(backendID string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, ok := l.said[backendID]; ok && time.Since(last) < limitedLogEvery {
		return false
	}
	if l.said == nil {
		l.said = map[string]time.Time{}
	}
	l.said[backendID] = time.Now()
	return true
}
