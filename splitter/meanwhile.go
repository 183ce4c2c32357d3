package splitter

import (
	"context"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxKept bounds the ids of changed documents that are kept of a stream while something else goes on.
const maxKept = 200_000

// meanwhile runs f, which may take hours, and reads the streams while it does; what they have shown is brought over afterwards. Left unread, a stream
// would have the reshape's own copies to read past when the gates are to be closed, and a server forgets what is not read for too long.
func (r *reshape) meanwhile(ctx context.Context, f func(context.Context) error) error {
	shown := make([]changes, len(r.streams))
	full := make([]bool, len(r.streams))
	during, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := make(chan struct{})
	var readers sync.WaitGroup
	for i, st := range r.streams {
		readers.Go(func() {
			var err error
			if full[i], err = st.keep(ctx, &shown[i], over); err != nil {
				cancel(err)
			}
		})
	}
	err := f(during)
	close(over)
	readers.Wait()
	if cause := context.Cause(during); cause != nil {
		return cause // what f failed with came of it
	}
	if err != nil {
		return err
	}
	for i := range shown {
		r.behind = r.behind || full[i]
		if err := r.apply(ctx, &shown[i]); err != nil {
			return err
		}
	}
	return nil
}

// keep reads the stream into c until over is closed; it reports whether it stopped before that, since c holds as much as it may.
func (st *stream) keep(ctx context.Context, c *changes, over <-chan struct{}) (full bool, err error) {
	for c.n < maxKept {
		select {
		case <-over:
			return false, nil
		default:
		}
		if _, _, err := st.read(ctx, c, bson.NilObjectID, false); err != nil {
			return false, err
		}
	}
	return true, nil
}
