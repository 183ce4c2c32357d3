package protocol

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// answered is a Board of instances and answers.
type answered struct {
	Board
	instances []Instance
	answers   []Answer
}

func (b *answered) Instances(context.Context) ([]Instance, error) { return b.instances, nil }
func (b *answered) Answers(context.Context, ID) ([]Answer, error) { return b.answers, nil }
func (b *answered) answer(closing, instance ID)                   { b.put(closing, instance, false) }
func (b *answered) put(closing, instance ID, released bool) {
	b.answers = append(b.answers, Answer{ID: AnswerID{closing, instance}, Released: released})
}
func (b *answered) wait(closing ID) error {
	return AwaitAnswers(context.Background(), b, closing, once)
}
func (b *answered) waitReleased(closing ID) error {
	return AwaitReleased(context.Background(), b, closing, once)
}

var errTooLong = errors.New("for too long")

func once(context.Context, int) error { return errTooLong }

// TestAnswers: everybody who is not gone must answer this closing, ended or not, and the owner says who has not; the inputs are in use until all who answered and are there have released them.
func TestAnswers(t *testing.T) {
	closing, another := bson.NewObjectID(), bson.NewObjectID()
	a, ended := bson.NewObjectID(), bson.NewObjectID()
	b := &answered{instances: []Instance{{ID: a, Proxy: "quick:1"}, {ID: ended, Proxy: "slow:2", Ended: true}}}
	b.answer(closing, a)
	b.answer(another, ended)
	err := b.wait(closing)
	if !errors.Is(err, errTooLong) || !strings.Contains(err.Error(), "slow:2") || strings.Contains(err.Error(), "quick:1") {
		t.Errorf("one has not answered this closing: %v", err)
	}
	b.answer(closing, ended)
	if err := b.wait(closing); err != nil {
		t.Errorf("all have answered: %v", err)
	}
	b.answers = nil
	b.answer(closing, a)
	b.answer(closing, ended)
	if err := b.waitReleased(closing); !errors.Is(err, errTooLong) {
		t.Errorf("nobody has released: %v", err)
	}
	b.answers = nil
	b.put(closing, a, true)
	b.answer(closing, ended)
	if err := b.waitReleased(closing); !errors.Is(err, errTooLong) {
		t.Errorf("one has released: %v", err)
	}
	b.instances = b.instances[:1] // the other is gone
	if err := b.waitReleased(closing); err != nil {
		t.Errorf("who has not released is gone: %v", err)
	}
}

// TestAwaitGone: a closing is not put while somebody is there who has been ended; who is alive, or gone, hinders nothing.
func TestAwaitGone(t *testing.T) {
	b := &answered{instances: []Instance{{ID: bson.NewObjectID(), Proxy: "quick:1"}, {ID: bson.NewObjectID(), Proxy: "dead:2", Ended: true}}}
	err := AwaitGone(context.Background(), b, once)
	if !errors.Is(err, errTooLong) || !strings.Contains(err.Error(), "dead:2") || strings.Contains(err.Error(), "quick:1") {
		t.Errorf("one is not gone: %v", err)
	}
	b.instances = []Instance{{ID: bson.NewObjectID(), Proxy: "dead:2", Ended: true}}
	err = AwaitGone(context.Background(), b, func(context.Context, int) error { b.instances = nil; return nil })
	if err != nil {
		t.Errorf("it is gone: %v", err)
	}
}
