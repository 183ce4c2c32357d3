package protocol

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// AwaitAnswers waits until every instance that is registered at the backend and not gone has answered a closing. Being ended excuses nobody. pause waits
// before the next look; its error ends the waiting, and the error then names whose answers are missing.
func AwaitAnswers(ctx context.Context, b Board, closing ID, pause func(ctx context.Context, try int) error) error {
	for try := 0; ; try++ {
		missing, err := unanswered(ctx, b, closing)
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			return nil
		}
		if err := pause(ctx, try); err != nil {
			return fmt.Errorf("%w; proxies that have not answered: %s", err, names(missing))
		}
	}
}

// AwaitGone waits, before a closing is put, until no instance at the backend has been ended without being gone: it will not answer, so that the gates would be closed in vain. It is
// no rule of the protocol: an instance that is ended later is waited for by AwaitAnswers. pause is as for that.
func AwaitGone(ctx context.Context, b Board, pause func(ctx context.Context, try int) error) error {
	for try := 0; ; try++ {
		live, err := b.Instances(ctx)
		if err != nil {
			return err
		}
		ended := slices.DeleteFunc(live, func(in Instance) bool { return !in.Ended })
		if len(ended) == 0 {
			return nil
		}
		if err := pause(ctx, try); err != nil {
			return fmt.Errorf("%w; proxies that have ended, and may have left transactions open: %s", err, names(ended))
		}
	}
}

// AwaitReleased waits until no instance that answered a closing uses the inputs any more; those that are gone do not.
func AwaitReleased(ctx context.Context, b Board, closing ID, pause func(ctx context.Context, try int) error) error {
	for try := 0; ; try++ {
		answers, err := b.Answers(ctx, closing)
		if err != nil {
			return err
		}
		live, err := b.Instances(ctx)
		if err != nil {
			return err
		}
		if !holding(answers, live) {
			return nil
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

// holding reports whether one that answered is not gone and has not released.
func holding(answers []Answer, live []Instance) bool {
	there := make(map[ID]bool, len(live))
	for _, in := range live {
		there[in.ID] = true
	}
	for _, a := range answers {
		if !a.Released && there[a.ID.Instance] {
			return true
		}
	}
	return false
}

// unanswered lists the instances without an answer. The instances are read first: who registers later sees the closing.
func unanswered(ctx context.Context, b Board, closing ID) ([]Instance, error) {
	live, err := b.Instances(ctx)
	if err != nil {
		return nil, err
	}
	answers, err := b.Answers(ctx, closing)
	if err != nil {
		return nil, err
	}
	done := make(map[ID]bool, len(answers))
	for _, a := range answers {
		if a.ID.Closing == closing {
			done[a.ID.Instance] = true
		}
	}
	var missing []Instance
	for _, in := range live {
		if !done[in.ID] {
			missing = append(missing, in)
		}
	}
	return missing, nil
}

func names(all []Instance) string {
	s := make([]string, len(all))
	for i, in := range all {
		s[i] = in.Proxy
	}
	return strings.Join(s, ", ")
}
