package model

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/protocol"
)

// The owner's steps, and what stands in for them where a rule is broken.

// close is Owner.Close.
func (t *Thread) close(o *protocol.Owner, rec *catalog.Reshape, ends int64, homes map[string][]string) error {
	like := protocol.Closing{NS: namespace, DB: database}
	if v := t.m.variant; v != MembersBeforeRecord && v != ClosingBeforeRecord {
		return o.Close(ctx, rec, ends, homes, like)
	}
	var names []string
	for b := range homes {
		names = append(names, b)
	}
	slices.Sort(names)
	var recorded []catalog.RecordedClosing
	members := map[string][]protocol.Instance{}
	for _, b := range names {
		recorded = append(recorded, catalog.RecordedClosing{Backend: b, ID: oid(kindClosing, closingNumber(num(rec.ID), backendOf(b)))})
		if t.m.variant == MembersBeforeRecord {
			all, err := o.Board(b).Instances(ctx)
			if err != nil {
				return err
			}
			members[b] = all
		}
	}
	record := func() error {
		return o.Records.SwapReshape(ctx, rec, func(n *catalog.Reshape) { n.Phase, n.EndV, n.Closings = catalog.Closing, ends, recorded })
	}
	write := func() error {
		for _, rc := range recorded {
			c := like
			c.ID, c.Reshape, c.Epoch, c.Ends, c.Physical = rc.ID, rec.ID, rec.Epoch, ends, homes[rc.Backend]
			if err := o.Board(rc.Backend).PutClosing(ctx, c); err != nil {
				return err
			}
		}
		return nil
	}
	steps := []func() error{record, write}
	if t.m.variant == ClosingBeforeRecord {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	for _, rc := range recorded {
		b := o.Board(rc.Backend)
		if t.m.variant == MembersBeforeRecord {
			b = knownMembers{b, members[rc.Backend]}
		}
		if err := protocol.AwaitAnswers(ctx, b, rc.ID, o.Pause); err != nil {
			return err
		}
	}
	return nil
}

// knownMembers waits for the answers of those who were registered once, but for who has gone.
type knownMembers struct {
	protocol.Board
	known []protocol.Instance
}

func (k knownMembers) Instances(c context.Context) ([]protocol.Instance, error) {
	now, err := k.Board.Instances(c)
	return slices.DeleteFunc(now, func(in protocol.Instance) bool {
		return !slices.ContainsFunc(k.known, func(o protocol.Instance) bool { return o.ID == in.ID })
	}), err
}

// mark is Mark.
func (t *Thread) mark(streams []protocol.Stream) ([]bson.Timestamp, error) {
	if t.m.variant != OneMarker {
		return protocol.Mark(ctx, streams)
	}
	var times []bson.Timestamp
	for _, s := range streams {
		_, at, err := s.Mark(ctx)
		if err != nil {
			return nil, err
		}
		times = append(times, at)
	}
	return times, nil
}

// takeOver is Owner.TakeOver.
func (t *Thread) takeOver(o *protocol.Owner, rec *catalog.Reshape, me uint8) (bool, error) {
	if t.m.variant != NoBurn || rec.Phase != catalog.Closing {
		return o.TakeOver(ctx, rec, oid(kindProcess, me), "")
	}
	err := o.Records.SwapReshape(ctx, rec, func(n *catalog.Reshape) { n.Owner, n.Epoch = oid(kindProcess, me), n.Epoch+1 })
	if err != nil {
		return false, err
	}
	return o.Flipped(ctx, rec)
}

// join is Join.
func (t *Thread) join(b protocol.Board, in protocol.Instance, registered func() error, see func(protocol.Closing), floor func(protocol.Floor) error) error {
	if t.m.variant != FloorsBeforeClosings {
		return protocol.Join(ctx, b, in, registered, see, floor)
	}
	if err := b.Register(ctx, in); err != nil {
		return err
	}
	if err := registered(); err != nil {
		return err
	}
	floors, err := b.Floors(ctx)
	if err != nil {
		return err
	}
	for _, f := range floors {
		if err := floor(f); err != nil {
			return err
		}
	}
	closings, err := b.Closings(ctx)
	for _, c := range closings {
		see(c)
	}
	return err
}
