package sandbox

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// progress shows how far a load is: a bar that is drawn over in a terminal, else a line whenever the
// partitions have changed or a few seconds have passed.
type progress struct {
	s        *sandbox
	total    int
	terminal bool
	last     time.Time
	shown    string // the last partitions
	done     int
}

const plainInterval = 3 * time.Second

func newProgress(s *sandbox, total int) *progress {
	info, err := s.options.Say.Stat()
	return &progress{s: s, total: total, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0 && s.options.Say.Name() != os.DevNull}
}

func (p *progress) show(done int, partitions string) {
	p.done = done
	if partitions == "" {
		partitions = p.shown
	}
	if p.terminal {
		p.draw(partitions)
	} else if partitions != p.shown || time.Since(p.last) >= plainInterval {
		p.s.say("  %5d of %d orders%s", done, p.total, after(partitions))
		p.last = time.Now()
	}
	p.shown = partitions
}

func (p *progress) draw(partitions string) {
	const width = 30
	full := width * p.done / p.total
	p.s.sayMu.Lock()
	defer p.s.sayMu.Unlock()
	fmt.Fprintf(p.s.options.Say, "\r  [%s%s] %5d of %d orders%s\x1b[K", strings.Repeat("#", full), strings.Repeat(".", width-full), p.done, p.total, after(partitions))
	p.s.bar = true
}

func (p *progress) end() {
	p.s.say("  all %d orders are in%s", p.total, after(p.shown))
}

// after is the partitions behind a comma, nothing while they are not known.
func after(partitions string) string {
	if partitions == "" {
		return ""
	}
	return ", " + partitions
}
