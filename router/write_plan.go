package router

import (
	"bytes"
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// stepPlan is what one passage through the gates does of a batch: of an ordered one the next statements that go to one partition, or the next
// statement that goes to several; of an unordered one everything.
type stepPlan struct {
	parts []*partition.Part
	// segments are run one after the other. What statements of one batch do to the same document so happens in the batch's order, as on one server.
	segments []segment
	errs     []failed
	// wide are the parts of each statement that does not simply go to one.
	wide [][]*partition.Part
	// count is how many statements the step covers.
	count int
}

// segment is statements that go out at the same time, grouped by part, and then statements that must find their document first, one by one.
type segment struct {
	groups   []group
	searches []found
}

// group is the statements for one part, in the order of the batch.
type group struct {
	part  *partition.Part
	stmts []*statement
}

// found is a statement that must find its document first.
type found struct {
	stmt   *statement
	search *search
}

type failed struct {
	stmt *statement
	err  *wire.Error
}

// errMustCreate says that the collection has been dropped since it was made sure of.
var errMustCreate = errors.New("router: the collection must be created")

// maxCreations bounds how often a write makes a collection that others go on dropping.
const maxCreations = 10

// step runs the next part of the batch inside the gates of the partitions it goes to.
func (b *writeBatch) step(ctx context.Context) error {
	for tries := 0; ; tries++ {
		var p stepPlan
		err := b.r.withinAny(ctx, b.ns, partition.Write, func(c *partition.Collection) ([]*partition.Part, error) {
			var err error
			p, err = b.plan(c)
			return p.parts, err
		}, func(c *partition.Collection, _ []*partition.Part) error {
			return b.execute(ctx, c, &p)
		})
		if !errors.Is(err, errMustCreate) || tries == maxCreations {
			return err
		}
		if err := b.r.ensureCollection(ctx, b.q.DB, b.ns); err != nil {
			return err
		}
	}
}

// plan decides where the next statements go. It changes nothing of the batch but what was read of its statements.
func (b *writeBatch) plan(c *partition.Collection) (stepPlan, error) {
	rest := b.stmts[b.next:]
	if c == nil || c.Dropped() {
		if b.creates() {
			return stepPlan{}, errMustCreate
		}
		return stepPlan{count: len(rest)}, nil
	}
	if err := checkUUID(c, b.uuid); err != nil {
		return stepPlan{}, err
	}
	if !c.Sharded() {
		g := group{part: c.Parts[0], stmts: make([]*statement, len(rest))}
		for i := range rest {
			g.stmts[i] = &rest[i]
		}
		return stepPlan{parts: c.Parts, segments: []segment{{groups: []group{g}}}, count: len(rest)}, nil
	}
	if err := b.read(c.Key); err != nil {
		return stepPlan{}, err
	}
	if b.ordered {
		return b.planRun(c, rest), nil
	}
	return b.planAll(c, rest), nil
}

// read reads all statements of an update or delete, under the key that the collection has: a malformed one fails the command before
// anything is done.
func (b *writeBatch) read(key *shardkey.Pattern) error {
	if b.kind == &inserts || b.key != nil && b.key.Equal(*key) {
		return nil
	}
	for i := range b.stmts {
		if err := b.stmts[i].parse(b.kind, key, b.let); err != nil {
			return err
		}
	}
	b.key = key
	return nil
}

// planRun takes the longest run of statements for one partition, or one statement.
func (b *writeBatch) planRun(c *partition.Collection, rest []statement) stepPlan {
	first := b.decide(&rest[0], c)
	p := stepPlan{parts: first.parts, count: 1}
	switch {
	case first.err != nil:
		p.errs = []failed{{&rest[0], first.err}}
		return p
	case first.search != nil:
		p.wide = [][]*partition.Part{first.parts}
		p.segments = []segment{{searches: []found{{&rest[0], first.search}}}}
		return p
	case len(first.parts) > 1:
		p.wide = [][]*partition.Part{first.parts}
		var all segment
		for _, part := range first.parts {
			all.groups = append(all.groups, group{part, []*statement{&rest[0]}})
		}
		p.segments = []segment{all}
		return p
	}
	g := group{first.parts[0], []*statement{&rest[0]}}
	for i := 1; i < len(rest); i++ {
		d := b.decide(&rest[i], c)
		if d.err != nil || d.search != nil || len(d.parts) != 1 || d.parts[0] != g.part {
			break
		}
		g.stmts = append(g.stmts, &rest[i])
		p.count++
	}
	p.segments = []segment{{groups: []group{g}}}
	return p
}

// planAll groups all statements by partition.
func (b *writeBatch) planAll(c *partition.Collection, rest []statement) stepPlan {
	p := stepPlan{count: len(rest)}
	// at has every part that is entered: 1 more than the index of its group in the segment, 0 where it has none.
	at := make(map[*partition.Part]int, min(len(c.Parts), len(rest)))
	var seg segment
	for i := range rest {
		s := &rest[i]
		d := b.decide(s, c)
		if d.err != nil {
			p.errs = append(p.errs, failed{s, d.err})
			continue
		}
		if d.search != nil || len(d.parts) > 1 {
			p.wide = append(p.wide, d.parts)
		}
		if d.search == nil && len(seg.searches) > 0 {
			p.segments = append(p.segments, seg)
			seg = segment{}
			for part := range at {
				at[part] = 0
			}
		}
		for _, part := range d.parts {
			g, entered := at[part]
			if !entered {
				at[part] = 0
				p.parts = append(p.parts, part)
			}
			if d.search != nil {
				continue
			}
			if g == 0 {
				seg.groups = append(seg.groups, group{part: part})
				g = len(seg.groups)
				at[part] = g
			}
			seg.groups[g-1].stmts = append(seg.groups[g-1].stmts, s)
		}
		if d.search != nil {
			seg.searches = append(seg.searches, found{s, d.search})
		}
	}
	p.segments = append(p.segments, seg)
	return p
}

// execute runs a plan inside the gates.
func (b *writeBatch) execute(ctx context.Context, c *partition.Collection, p *stepPlan) error {
	b.countTargets(c, p)
	for _, f := range p.errs {
		b.result.fail(f.stmt.index, f.err)
	}
	for _, seg := range p.segments {
		if err := b.executeSegment(ctx, c, seg); err != nil {
			return err
		}
	}
	b.next += p.count
	b.stopped = b.ordered && b.result.failed()
	return nil
}

// countTargets counts where a step's statements go.
func (b *writeBatch) countTargets(c *partition.Collection, p *stepPlan) {
	to := b.kind.targeted(&b.r.stats)
	switch {
	case c == nil || c.Dropped():
	case !c.Sharded():
		to.unsharded.Add(int64(p.count))
	default:
		to.one.Add(int64(p.count - len(p.errs) - len(p.wide)))
		for _, parts := range p.wide {
			to.count(c, parts)
		}
	}
}

func (b *writeBatch) executeSegment(ctx context.Context, c *partition.Collection, seg segment) error {
	groups, err := b.divertTimed(ctx, c, seg.groups)
	if err == nil {
		groups, err = b.divert(ctx, c, groups)
	}
	if err == nil {
		err = b.exchange(ctx, c, b.chunks(groups), &b.result)
	}
	if err != nil {
		if b.result.nothing() || b.q.InTxn {
			return err
		}
		for _, g := range seg.groups {
			b.result.failChunk(&chunk{group: g}, err, b.ordered)
		}
	}
	for _, f := range seg.searches {
		if err := b.searchAndWrite(ctx, c, f.stmt, f.search); err != nil {
			if b.q.InTxn || b.result.nothing() && !ofStatement(err) {
				return err
			}
			b.result.fail(f.stmt.index, err)
		}
	}
	return nil
}

// searchError is what the search for a statement's document met.
type searchError struct{ error }

func (e searchError) Unwrap() error { return e.error }

// ofStatement reports whether an error that a statement met is the statement's and not the command's: one of its search's that the server which applies
// the statement would have met too, as for a malformed filter. What a server says of the write itself is not: it would have told that apart.
func ofStatement(err error) bool {
	var search searchError
	if !errors.As(err, &search) {
		return false
	}
	e := wire.AsError(err)
	switch e.Code {
	case wire.MaxTimeMSExpired, wire.Unauthorized, wire.Interrupted, wire.InternalError, wire.QueryPlanKilled, wire.CursorKilled, wire.CollectionUUIDMismatch:
		return false
	}
	return !e.Code.Retriable()
}

// checkUUID compares collectionUUID, if the client sent one, with the collection's own: the physical collections have others.
func checkUUID(c *partition.Collection, uuid bsoncore.Value) error {
	if uuid.Type == 0 || c.Map == nil {
		return nil
	}
	_, data, ok := uuid.BinaryOK()
	if !ok {
		return typeMismatch("collectionUUID", uuid, "UUID")
	}
	if bytes.Equal(data, c.Map.UUID.Data) {
		return nil
	}
	extra := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "db", c.DB), bsoncore.AppendValueElement(nil, "collectionUUID", uuid),
		bsoncore.AppendStringElement(nil, "expectedCollection", c.Name), bsoncore.AppendNullElement(nil, "actualCollection"))
	e := wire.Errorf(wire.CollectionUUIDMismatch, "Collection UUID does not match that specified")
	e.Extra = extra
	return e
}
