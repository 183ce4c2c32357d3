package router

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{{Name: "getLog", Admin: true, Help: "shows the newest lines of the log", Run: r.getLog}}
})

const (
	// recentLines is how many lines getLog shows, and recentLine how long one of them may be, in bytes.
	recentLines = 1024
	recentLine  = 4096
)

// RecentLog keeps the newest lines of a JSON log for getLog. It is an io.Writer of which each Write is one line; its zero value is ready.
type RecentLog struct {
	mu    sync.Mutex
	lines [recentLines][]byte
	kept  int
	total int64
}

// Write keeps a copy of one line, unless it is too long. It never fails.
func (l *RecentLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	if len(line) <= recentLine {
		at := l.kept % recentLines
		l.lines[at] = append(l.lines[at][:0], bytes.TrimRight(line, "\n")...)
		l.kept++
	}
	return len(line), nil
}

// recent returns the lines kept, oldest first, and how many were written in all.
func (l *RecentLog) recent() (lines []string, total int64) {
	if l == nil {
		return nil, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := max(0, l.kept-recentLines); i < l.kept; i++ {
		lines = append(lines, string(l.lines[i%recentLines]))
	}
	return lines, l.total
}

func (r *Router) getLog(_ context.Context, q *Request) (Reply, error) {
	which, ok := q.First.StringValueOK()
	if !ok {
		return Reply{}, typeMismatch("getLog", q.First, "string")
	}
	switch which {
	case "*":
		return docReply(bson.D{{Key: "names", Value: bson.A{"global", "startupWarnings"}}})
	case "startupWarnings":
		return docReply(bson.D{{Key: "totalLinesWritten", Value: int32(0)}, {Key: "log", Value: bson.A{}}})
	case "global":
		lines, total := r.cfg.RecentLog.recent()
		log := bson.A{}
		for _, line := range lines {
			log = append(log, asServerLog(line))
		}
		return docReply(bson.D{{Key: "totalLinesWritten", Value: int32(min(total, 1<<31-1))}, {Key: "log", Value: log}})
	}
	return Reply{}, wire.Errorf(wire.OperationFailed, "No log named '%s'", which)
}

// asServerLog makes of a line of our log what a server's looks like, which clients parse: {t, s, c, id, ctx, msg, attr}.
func asServerLog(line string) string {
	var fields map[string]any
	if json.Unmarshal([]byte(line), &fields) != nil {
		return line
	}
	take := func(name string) string {
		s, _ := fields[name].(string)
		delete(fields, name)
		return s
	}
	when, level, msg := take("time"), take("level"), take("message")
	if t, err := time.Parse(time.RFC3339, when); err == nil {
		when = t.Format("2006-01-02T15:04:05.000-07:00")
	}
	severity := "I"
	if level != "" {
		severity = strings.ToUpper(level[:1])
	}
	out, err := json.Marshal(struct {
		T    map[string]string `json:"t"`
		S    string            `json:"s"`
		C    string            `json:"c"`
		ID   int               `json:"id"`
		Ctx  string            `json:"ctx"`
		Msg  string            `json:"msg"`
		Attr map[string]any    `json:"attr,omitempty"`
	}{map[string]string{"$date": when}, severity, "SHARDING", 0, "shardway", msg, fields})
	if err != nil {
		return line
	}
	return string(out)
}
