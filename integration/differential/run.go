package differential

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/integration/rawconn"
)

// most getMores of one cursor; more mean that it never ends.
const maxGetMores = 2000

// Side is one of the two addresses.
type Side struct {
	Addr string
	// Sharded says that the collections are sharded here, by shardCollection with this many partitions each.
	Sharded    bool
	Partitions int
}

// Difference is the first step whose outcomes differ.
type Difference struct {
	Step         int
	A, B         Outcome
	TextA, TextB string // the first reply's errors in words, which are not compared
}

// String shows the step's two outcomes where they differ.
func (d *Difference) String(p Program) string {
	var b strings.Builder
	fmt.Fprintf(&b, "step %d: %s\n", d.Step, extended(p.Steps[d.Step].Cmd))
	shown := 0
	for i := range max(len(d.A), len(d.B)) {
		line := func(o Outcome) string {
			if i < len(o) {
				return o[i]
			}
			return "(nothing)"
		}
		if a, c := line(d.A), line(d.B); a != c {
			fmt.Fprintf(&b, "line %d\n  A: %s\n  B: %s\n", i, a, c)
			if shown++; shown == 5 {
				break
			}
		}
	}
	if d.TextA+d.TextB != "" {
		fmt.Fprintf(&b, "in words\n  A: %s\n  B: %s\n", d.TextA, d.TextB)
	}
	return b.String()
}

// ErrConnection means that a side could not be asked; it wraps the cause.
var ErrConnection = errors.New("connection")

// Run runs a program in a fresh database on both sides and returns the first difference, or nil. setUp, if not nil, is called when A's
// collections are there. Both databases are dropped at the end.
func Run(ctx context.Context, p Program, a, b Side, db string, setUp func()) (*Difference, error) {
	ra, err := open(ctx, a, db, p.Seed)
	if err != nil {
		return nil, fmt.Errorf("A: %w", err)
	}
	defer ra.close()
	rb, err := open(ctx, b, db, p.Seed)
	if err != nil {
		return nil, fmt.Errorf("B: %w", err)
	}
	defer rb.close()
	if setUp != nil {
		setUp()
	}
	for i, s := range p.Steps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		oa, err := ra.run(i, s)
		if err != nil {
			return nil, fmt.Errorf("A: step %d: %s: %w", i, extended(s.Cmd), err)
		}
		ob, err := rb.run(i, s)
		if err != nil {
			return nil, fmt.Errorf("B: step %d: %s: %w", i, extended(s.Cmd), err)
		}
		if !slices.Equal(oa, ob) {
			return &Difference{i, oa, ob, ra.text, rb.text}, nil
		}
	}
	return nil, nil
}

// Shrink drops steps from a failing program while it still fails, until no single one can be dropped or ctx ends. fails must run the
// program from the start.
func Shrink(ctx context.Context, p Program, failing int, fails func(Program) bool) Program {
	p.Steps = p.Steps[: failing+1 : failing+1]
	for size := max(1, len(p.Steps)/2); ; size = max(1, size/2) {
		dropped := false
		for from := 0; from < len(p.Steps)-1 && ctx.Err() == nil; {
			to := min(from+size, len(p.Steps)-1) // the last step is the one that differs
			smaller := Program{Seed: p.Seed, Steps: slices.Concat(p.Steps[:from], p.Steps[to:])}
			if fails(smaller) {
				p, dropped = smaller, true
				continue
			}
			from = to
		}
		if size == 1 && !dropped || ctx.Err() != nil {
			return p
		}
	}
}

// runner runs steps on one side.
type runner struct {
	conn *rawconn.Conn
	db   string
	lsid bson.Binary
	txn  int64
	text string // what the present step's first reply says went wrong
}

func open(ctx context.Context, s Side, db string, seed uint64) (*runner, error) {
	conn, err := rawconn.Dial(ctx, s.Addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConnection, err)
	}
	sum := sha256.Sum256(append(binary.LittleEndian.AppendUint64(nil, seed), db...))
	r := &runner{conn: conn, db: db, lsid: bson.Binary{Subtype: 4, Data: sum[:16]}}
	if !s.Sharded {
		return r, nil
	}
	for _, c := range collections {
		if c.key == "" {
			continue
		}
		cmd := bson.D{{Key: "shardCollection", Value: db + "." + c.name}, {Key: "key", Value: bson.D{{Key: c.key, Value: "hashed"}}}, {Key: "$db", Value: "admin"}}
		if s.Partitions > 0 {
			cmd = slices.Insert(cmd, 2, bson.E{Key: "numInitialChunks", Value: int32(s.Partitions)})
		}
		reply, err := conn.Run(cmd)
		if err == nil && !rawconn.OK(reply) {
			err = fmt.Errorf("%s: %v", extended(cmd), reply)
		}
		if err != nil {
			conn.Close()
			return nil, err
		}
	}
	return r, nil
}

func (r *runner) close() {
	_, _ = r.conn.Run(bson.D{{Key: "dropDatabase", Value: 1}, {Key: "$db", Value: r.db}}) // best effort: a side may be broken
	r.conn.Close()
}

// command runs a command in the program's session.
func (r *runner) command(cmd bson.D, more ...bson.E) (bson.Raw, error) {
	full := slices.Concat(cmd, bson.D{{Key: "$db", Value: r.db}, {Key: "lsid", Value: bson.D{{Key: "id", Value: r.lsid}}}}, more)
	reply, err := r.conn.Run(full)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConnection, err)
	}
	return reply, nil
}

func (r *runner) run(i int, s Step) (Outcome, error) {
	r.conn.SetTimeout(time.Minute)
	c := collector{step: s}
	var more bson.D
	if s.Twice {
		r.txn++
		more = bson.D{{Key: "txnNumber", Value: r.txn}}
	}
	reply, err := r.command(s.Cmd, more...)
	if err != nil {
		return nil, err
	}
	if err := c.reply(reply); err != nil {
		return nil, err
	}
	r.text = complaint(reply)
	if s.Twice {
		if reply, err = r.command(s.Cmd, more...); err != nil {
			return nil, err
		}
		if err := c.reply(reply); err != nil {
			return nil, err
		}
	}
	switch {
	case s.Kill && rawconn.OK(reply):
		return r.kill(&c, s, reply)
	case s.Drain && rawconn.OK(reply):
		return r.drain(&c, s, reply)
	}
	return c.finish(), nil
}

// complaint is what a reply says went wrong.
func complaint(reply bson.Raw) string {
	if text, ok := reply.Lookup("errmsg").StringValueOK(); ok {
		return text
	}
	if e, err := reply.LookupErr("writeErrors"); err == nil {
		return e.String()
	}
	return ""
}

func cursorID(reply bson.Raw) int64 {
	id, _ := reply.Lookup("cursor", "id").Int64OK()
	return id
}

// drain reads a cursor to its end. That a batch is no larger than asked is checked; how the result is cut into batches is open.
func (r *runner) drain(c *collector, s Step, reply bson.Raw) (Outcome, error) {
	for n := 0; cursorID(reply) != 0; n++ {
		if n == maxGetMores {
			return nil, errors.New("a cursor that does not end")
		}
		cmd := bson.D{{Key: "getMore", Value: cursorID(reply)}, {Key: "collection", Value: s.Cmd[0].Value}}
		if s.Batch > 0 {
			cmd = append(cmd, bson.E{Key: "batchSize", Value: s.Batch})
		}
		had := len(c.docs)
		var err error
		if reply, err = r.command(cmd); err != nil {
			return nil, err
		}
		if !rawconn.OK(reply) {
			c.out = append(c.out, fmt.Sprintf("getMore fails: %d", rawconn.Code(reply)))
			r.text = complaint(reply)
			break
		}
		if err := c.batch(reply); err != nil {
			return nil, err
		}
		if got := len(c.docs) - had; s.Batch > 0 && got > int(s.Batch) {
			c.out = append(c.out, fmt.Sprintf("a batch of %d, not %d", got, s.Batch))
		}
	}
	return c.finish(), nil
}

// kill gives a cursor up and asks for more of it.
func (r *runner) kill(c *collector, s Step, reply bson.Raw) (Outcome, error) {
	id := cursorID(reply)
	if id == 0 {
		c.docs = nil
		return append(c.out, "no cursor left"), nil
	}
	c.out = append(c.out, fmt.Sprintf("%d documents", len(c.docs)))
	c.docs = nil // which ones is open
	killed, err := r.command(bson.D{{Key: "killCursors", Value: s.Cmd[0].Value}, {Key: "cursors", Value: bson.A{id}}})
	if err != nil {
		return nil, err
	}
	array, _ := killed.Lookup("cursorsKilled").ArrayOK()
	values, _ := array.Values()
	after, err := r.command(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: s.Cmd[0].Value}})
	if err != nil {
		return nil, err
	}
	return append(c.out, fmt.Sprintf("killed %d, then %d", len(values), rawconn.Code(after))), nil
}
