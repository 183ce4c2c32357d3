package router

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// chunk is the statements that go to one part in one message. round puts the chunks of one part in order.
type chunk struct {
	group
	round int
	// session is the derived one of a retryable write; derivedFor gives it.
	session sessionKey
}

// chunks divides groups into messages that stay below the limit with what the proxy adds.
func (b *writeBatch) chunks(groups []group) []chunk {
	fixed := len(b.q.Msg.Body) + 4096
	var out []chunk
	for _, g := range groups {
		size, from, round := fixed, 0, 0
		for i, s := range g.stmts {
			n := len(s.raw) + 16 // a statement id as an array element
			if i > from && size+n > maxMessageBytes {
				out = append(out, chunk{group: group{g.part, g.stmts[from:i]}, round: round})
				size, from, round = fixed, i, round+1
			}
			size += n
		}
		out = append(out, chunk{group: group{g.part, g.stmts[from:]}, round: round})
	}
	return out
}

// exchange sends chunks, those of one round at the same time, and merges what comes back. An error is the command's: nothing was done.
func (b *writeBatch) exchange(ctx context.Context, c *partition.Collection, chunks []chunk, into *writeResult) error {
	for round := 0; len(chunks) > 0; round++ {
		var now, later []chunk
		for _, k := range chunks {
			if k.round == round {
				now = append(now, k)
			} else {
				later = append(later, k)
			}
		}
		if err := b.exchangeRound(ctx, c, now, into); err != nil {
			return err
		}
		if b.ordered && into.failed() {
			return nil
		}
		chunks = later
	}
	return nil
}

func (b *writeBatch) exchangeRound(ctx context.Context, c *partition.Collection, chunks []chunk, into *writeResult) error {
	outcomes := make([]outcome, len(chunks))
	var targets []target
	var msgs [][]byte
	var at []int
	var buffers []*wire.Buffer
	defer func() {
		for _, buf := range buffers {
			buf.Release()
		}
	}()
	for i, k := range chunks {
		alone := false
		if b.q.retryable() {
			var err error
			if alone, err = b.r.standalone(ctx, k.part.Backend); err != nil {
				outcomes[i].err = err
				continue
			}
		}
		if alone {
			outcomes[i] = b.ledgered(ctx, c, k)
			continue
		}
		if b.q.retryable() {
			var err error
			if k.session, err = b.r.derivedFor(b.q, k.part.Home); err != nil {
				outcomes[i].err = err
				continue
			}
		}
		buf := b.message(c, k, b.q.retryable())
		buffers = append(buffers, buf)
		targets, msgs, at = append(targets, target{Backend: k.part.Backend, Part: k.part, Shape: b.shape(c, &k), Wait: true}), append(msgs, buf.B), append(at, i)
	}
	replies, errs := b.r.scatter(ctx, targets, msgs)
	for j, i := range at {
		o := newOutcome(&replies[j], errs[j])
		for n := 1; n < attempts && b.q.retryable() && mayRepeat(ctx, o.err); n++ {
			reply, err := b.r.do(ctx, targets[j], msgs[j])
			o = newOutcome(&reply, err)
		}
		outcomes[i] = o
	}
	for i := range outcomes {
		if outcomes[i].err != nil { // of a statement, too, the client hears why, and not what that did to a connection
			outcomes[i].err = interruption(ctx, outcomes[i].err)
		}
	}
	return b.merge(chunks, outcomes, into)
}

// outcome is what came of one message.
type outcome struct {
	body bson.Raw // an ok reply, owned
	err  error    // what else
	// results are the statements' own, from the ledger.
	results *writeResult
}

func newOutcome(reply *backend.Reply, err error) outcome {
	if err != nil {
		return outcome{err: err}
	}
	defer reply.Release()
	if err := commandError(reply.Body); err != nil {
		return outcome{err: err}
	}
	return outcome{body: append(bson.Raw(nil), reply.Body...)}
}

// merge takes the outcomes of a round. When nothing at all was done, by this round or before, the first error is the command's, as one server would have it;
// else it becomes an error of the statements that were in the message.
func (b *writeBatch) merge(chunks []chunk, outcomes []outcome, into *writeResult) error {
	done := !into.nothing() || !b.result.nothing()
	for _, o := range outcomes {
		done = done || o.err == nil
	}
	for i, o := range outcomes {
		switch {
		case o.results != nil:
			into.add(o.results)
		case o.err == nil:
			into.take(o.body, &chunks[i], b.ordered)
		case !done || b.q.InTxn: // a transaction fails as a whole
			return together(outcomes, o.err)
		default:
			into.failChunk(&chunks[i], o.err, b.ordered)
		}
	}
	return nil
}

// together is the command's error when err is the first of those that its messages met: what one of them says against a repetition holds for the whole command.
func together(outcomes []outcome, err error) error {
	for _, o := range outcomes {
		var lost unremembered
		if errors.As(o.err, &lost) {
			return unremembered{err}
		}
	}
	return err
}

// message makes the command for one home: the client's with the physical name, these statements, the session and the statement ids.
func (b *writeBatch) message(c *partition.Collection, k chunk, txn bool) *wire.Buffer {
	size := 512 + len(b.q.Msg.Body)
	for _, s := range k.stmts {
		size += len(s.raw) + 16
	}
	buf := wire.GetBuffer(size)
	dst := wire.AppendMsgStart(buf.B[:0])
	dst = b.q.appendFor(dst, k.part, !txn, func(key []byte) bool { return b.drops(c, string(key)) }, func(dst []byte) []byte {
		if !txn {
			return dst
		}
		return b.appendRetryable(dst, k)
	})
	at, dst := wire.AppendSequenceStart(dst, b.kind.list)
	for _, s := range k.stmts {
		dst = append(dst, s.raw...)
	}
	wire.EndSequence(dst, at)
	buf.B = wire.Seal(dst, 0)
	return buf
}

// drops reports the fields that are not the client's to say to a home.
func (b *writeBatch) drops(c *partition.Collection, key string) bool {
	switch key {
	case b.kind.list:
		return true
	case "writeConcern":
		return b.unacknowledged
	case "collectionUUID":
		return c.Map != nil
	}
	return false
}

// appendRetryable appends the derived session, the client's transaction number and, unless they are 0, 1, 2 …, the statements' ids in the client's batch.
func (b *writeBatch) appendRetryable(dst []byte, k chunk) []byte {
	dst = b.q.appendDerived(dst, k.session)
	plain := !b.ownIDs
	for i, s := range k.stmts {
		plain = plain && s.id == int32(i)
	}
	if plain {
		return dst
	}
	at, dst := bsoncore.AppendArrayElementStart(dst, "stmtIds")
	for i, s := range k.stmts {
		dst = bsoncore.AppendInt32Element(dst, itoa(i), s.id)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, at)
	return dst
}

// appendDerived appends the session and transaction number under which a retryable write goes to a home.
func (q *Request) appendDerived(dst []byte, id sessionKey) []byte {
	return bsoncore.AppendInt64Element(appendSession(dst, id), "txnNumber", q.TxnNumber)
}
