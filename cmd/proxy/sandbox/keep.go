package sandbox

import (
	"context"
	"time"

	"github.com/shardway/shardway/fleet"
)

// restartPause keeps a child that dies at once from being started in a loop without a breath.
const restartPause = time.Second

func (s *sandbox) keepServer(ctx context.Context, name string, server *fleet.Server) {
	s.keep(ctx, name, server.Exited, server.Restart, server.PID)
}

func (s *sandbox) keepProxy(ctx context.Context, p *proxy) {
	exited := func() <-chan struct{} { _, c := p.running(); return c }
	pid := func() int { id, _ := p.running(); return id }
	s.keep(ctx, p.name, exited, p.start, pid)
}

// keep starts a child again whenever it dies, until ctx ends.
func (s *sandbox) keep(ctx context.Context, name string, exited func() <-chan struct{}, start func(context.Context) error, pid func() int) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-exited():
		}
		if ctx.Err() != nil {
			return
		}
		s.say("%s died; starting it again", name)
		begun := time.Now()
		err := start(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			s.say("%s is back after %d ms, pid %d", name, time.Since(begun).Milliseconds(), pid())
			continue
		}
		s.say("%s does not start: %v", name, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(restartPause):
		}
	}
}
