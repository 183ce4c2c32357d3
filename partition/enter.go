package partition

import (
	"context"
	"time"
)

// Enter passes the gates of all parts, or of none: while one of them is closed it holds nothing and waits.
// It returns ErrReplan when the map has changed since the parts' collection was looked up, and ctx's cause
// when that ends first. After nil the caller must call Leave with the same arguments, exactly once.
func Enter(ctx context.Context, parts []*Part, mode Mode) error {
	for {
		wait, err := tryAll(parts, mode)
		if err != nil {
			return err
		}
		if wait == nil {
			if mode == Write {
				brake(ctx, parts)
			}
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func tryAll(parts []*Part, mode Mode) (<-chan struct{}, error) {
	for i, p := range parts {
		wait, err := p.gate.tryEnter(p.version, mode)
		if wait != nil || err != nil {
			Leave(parts[:i], mode)
			return wait, err
		}
	}
	return nil, nil
}

// Leave leaves the gates that Enter passed.
func Leave(parts []*Part, mode Mode) {
	for _, p := range parts {
		p.gate.leave(mode)
	}
}

// brake waits as long as the longest brake of the parts' gates says. It ends when that gate closes, whose owner waits for
// whoever is inside, and with ctx.
func brake(ctx context.Context, parts []*Part) {
	var d time.Duration
	var closes <-chan struct{}
	for _, p := range parts {
		if b, ch := p.gate.braked(); b > d {
			d, closes = b, ch
		}
	}
	if d == 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-closes:
	case <-ctx.Done():
	}
}
