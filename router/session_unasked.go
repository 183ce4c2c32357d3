package router

import (
	"sync/atomic"
	"time"

	"github.com/shardway/shardway/backend/records"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// unansweredQuestions counts the retryable writes that were refused because nobody could tell
// whether they had been executed. Its zero value is ready for use.
type unansweredQuestions struct {
	// passing counts those for a cause that passes, refused those for which the backend refuses to
	// answer.
	passing, refused atomic.Int64

	said limitedLog
}

// unasked is the error when a home cannot be asked for its record: a guess would apply the write
// twice, or not at all. It concerns one write only, which has a transaction number, whose session
// has not been looked up at that home, and whose position the home holds or held.
func (p *past) unasked(old *partition.OldHome, err error) error {
	return p.r.unasked("the former home of "+p.c.NS+" on backend '"+old.Backend+"'", homeOf(p.c, old), old.Since.Add(p.r.retryWindow()), err)
}

// unasked makes the error for a home, which what names for a client; until, if not zero, is when it
// need not be asked any more. A cause that passes is a retryable error. A server that refuses the
// question will do so again: its own code tells the client so. That the oplog has lost the answer
// (217) is an answer.
func (r *Router) unasked(what string, home partition.Home, until time.Time, err error) error {
	e := *wire.AsError(err)
	if e.Code == wire.IncompleteTransactionHistory {
		return &e
	}
	lasting := records.Lasting(err)
	if lasting {
		r.unanswered.refused.Add(1)
	} else {
		r.unanswered.passing.Add(1)
		e = wire.Error{Code: wire.HostUnreachable, Labels: []string{retryableWrite}, Message: e.Message}
	}
	text := "cannot ask " + what + " whether the write was executed already"
	if !until.IsZero() {
		text += "; it must be asked until " + until.UTC().Format(time.RFC3339)
	}
	if r.unanswered.said.may(home.Backend) {
		r.log.Error().Err(err).Str("backend", home.Backend).Str("home", home.Physical).Bool("lasting", lasting).Msg(text + "; such writes are refused")
	}
	e.Message = text + " :: caused by :: " + cleanNames(e.Message)
	return &e
}
