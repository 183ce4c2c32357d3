package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/admission"
	"github.com/shardway/shardway/config"
)

// admissions looks at each backend once before it is used, and logs what was met.
type admissions struct {
	catalogID string
	log       zerolog.Logger

	mu       sync.Mutex
	admitted map[string]*backend.Backend // by id
	refused  map[string]string           // the last error, which is not logged again
}

func newAdmission(catalogID string, log zerolog.Logger) *admissions {
	return &admissions{catalogID: catalogID, log: log, admitted: map[string]*backend.Backend{}, refused: map[string]string{}}
}

// admit returns nil for a backend that may be used. It must have been reached. See admission.Examine for the errors: what it
// refuses is barred, so that nobody uses it until a later look admits it.
func (a *admissions) admit(ctx context.Context, b *backend.Backend) error {
	if a.has(b) {
		return nil
	}
	f, err := admission.Examine(ctx, b, b.ID() == a.catalogID)
	if err == nil {
		b.Bar(nil)
	} else if admission.Refused(err) {
		b.Bar(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		if a.refused[b.ID()] != err.Error() {
			a.log.Error().Err(err).Str("backend", b.ID()).Msg("a backend is not used")
		}
		a.refused[b.ID()] = err.Error()
		return err
	}
	delete(a.refused, b.ID())
	a.admitted[b.ID()] = b
	a.log.Info().Str("backend", f.Backend).Stringer("kind", f.Kind).Str("set", f.Set).Str("host", f.Host).Str("version", f.Version).
		Str("featureCompatibilityVersion", f.FCV).Int32("maxWireVersion", f.Wire).Bool("accessControl", f.User != "").Str("user", f.User).Msg("met a backend")
	for _, w := range f.Warnings {
		a.log.Warn().Str("backend", f.Backend).Str("what", w).Msg("of a backend")
	}
	return nil
}

// has reports whether a backend was admitted.
func (a *admissions) has(b *backend.Backend) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.admitted[b.ID()] == b
}

// refusal is the error that ends the start, nil where the backend may only have been out of reach. One whose servers are too
// old for the driver is never reached.
func refusal(b *backend.Backend, err error) error {
	if admission.Refused(err) {
		return err
	}
	return admission.CheckWire(b)
}

// checkLimit is how long --check waits for a backend.
const checkLimit = 5 * time.Second

// checkBackends prints what each backend is, and returns an error where one cannot be used. One that cannot be reached is told and
// is no error, as a proxy starts without it.
func checkBackends(ctx context.Context, cfg config.Config, w io.Writer) error {
	catalogID, err := catalogBackend(cfg)
	if err != nil {
		return err
	}
	backends, err := openBackends(ctx, cfg, zerolog.Nop())
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		_ = closeBackends(closing, backends)
	}()
	all := backends.All()
	texts := make([]string, len(all))
	refusals := make([]error, len(all))
	var checks sync.WaitGroup
	for i, b := range all {
		checks.Go(func() { texts[i], refusals[i] = checkBackend(ctx, b, b.ID() == catalogID) })
	}
	checks.Wait()
	for _, text := range texts {
		fmt.Fprintln(w, text)
	}
	for _, err := range refusals {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkBackend(ctx context.Context, b *backend.Backend, hasCatalog bool) (text string, refused error) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	var f admission.Finding
	err := b.Ready(ctx)
	if err == nil {
		f, err = admission.Examine(ctx, b, hasCatalog)
	}
	if err != nil {
		if refused = refusal(b, err); refused != nil {
			return "refused: " + refused.Error(), refused
		}
		return fmt.Sprintf("backend '%s' cannot be reached: %v", b.ID(), err), nil
	}
	return strings.Join(append([]string{describe(f)}, f.Warnings...), "\n  "), nil
}

// describe tells what a backend is in one line.
func describe(f admission.Finding) string {
	s := fmt.Sprintf("backend '%s' is a %s (%s), version %s, maxWireVersion %d", f.Backend, f.Kind, f.Host, f.Version, f.Wire)
	if f.FCV != "" {
		s += ", feature compatibility version " + f.FCV
	}
	if f.User == "" {
		return s + ", without access control"
	}
	return s + ", with access control, as user " + f.User
}
