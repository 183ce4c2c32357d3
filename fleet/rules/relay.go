package rules

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// Hook looks at a request before the server does. A reply that is not nil is sent and the server is
// not asked, nor are later hooks. An edit that is not nil is given each reply to the request, its own
// hook's included, and returns what is sent instead; it may return what it was given. Edits run in
// the opposite order of the hooks.
// A hook may change the request, ask the server further commands, and wait as long as the request's
// context lives: on a connection one request is dealt with after the other, as servers do.
type Hook func(r *Request) (reply bson.Raw, edit func(bson.Raw) bson.Raw)

// Options say what a relay stands in front of.
type Options struct {
	// Listen is the address to listen on; empty for a free port on loopback.
	Listen string
	// Target returns the server's address. It is asked for each new connection.
	Target func() string
	// Hooks are asked in order.
	Hooks []Hook
}

// Relay passes connections on to a server and lets hooks see, answer and change what is said. Its
// methods may be called at any time and from several goroutines.
type Relay struct {
	options  Options
	listener net.Listener
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu        sync.Mutex // guards what follows
	down      bool
	holds     int
	flowing   chan struct{} // closed while requests and replies pass
	conns     map[*Conn]struct{}
	finishing int           // requests whose outcome has to be learnt
	settled   chan struct{} // closed when finishing is zero
}

// New makes a relay. The caller must Close it.
func New(o Options) (*Relay, error) {
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &Relay{options: o, listener: l, ctx: ctx, cancel: cancel, conns: map[*Conn]struct{}{},
		flowing: make(chan struct{}), settled: make(chan struct{})}
	close(k.flowing)
	close(k.settled)
	k.wg.Go(k.accept)
	return k, nil
}

// Addr is the address that clients connect to.
func (k *Relay) Addr() string { return k.listener.Addr().String() }

// Conns is how many clients are connected.
func (k *Relay) Conns() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.conns)
}

// Cut resets all connections that are open. The server goes on with what it was doing, and hooks
// learn how writes that it has begun end.
func (k *Relay) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		reset(c.client)
	}
}

// Down resets all connections, and those that come until Up.
func (k *Relay) Down() {
	k.mu.Lock()
	k.down = true
	k.mu.Unlock()
	k.Cut()
}

// Up ends Down.
func (k *Relay) Up() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = false
}

// Hold stops the relay from answering until Release: requests that come wait, and so do replies.
// Each Hold needs a Release of its own.
func (k *Relay) Hold() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holds++; k.holds == 1 {
		k.flowing = make(chan struct{})
	}
}

// Release ends one Hold. What was held goes on.
func (k *Relay) Release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holds--; k.holds == 0 {
		close(k.flowing)
	}
}

// Settle waits until no request is on its way whose outcome has to be learnt (see Request.Finish),
// or until ctx ends. Between Hold and Release no new ones begin.
func (k *Relay) Settle(ctx context.Context) error {
	k.mu.Lock()
	settled := k.settled
	k.mu.Unlock()
	select {
	case <-settled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close cuts everything and waits until nothing of the relay runs.
func (k *Relay) Close() error {
	k.cancel()
	err := k.listener.Close()
	k.mu.Lock()
	for c := range k.conns {
		reset(c.client)
		reset(c.server)
	}
	k.mu.Unlock()
	k.wg.Wait()
	return err
}

func (k *Relay) accept() {
	for {
		client, err := k.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: not a reason to spin
			continue
		}
		k.wg.Go(func() { k.serve(client) })
	}
}

func (k *Relay) serve(client net.Conn) {
	defer reset(client)
	if k.isDown() || !k.flows(k.ctx) {
		return
	}
	var d net.Dialer
	server, err := d.DialContext(k.ctx, "tcp", k.options.Target())
	if err != nil {
		return // the client sees a reset, as if nobody had listened
	}
	defer reset(server)
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	c := &Conn{relay: k, client: client, server: server, ctx: ctx, cancel: cancel,
		fromClient: wire.NewReader(client), fromServer: wire.NewReader(server)}
	if !k.register(c) {
		return
	}
	defer k.forget(c)
	c.serve()
}

func (k *Relay) isDown() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.down
}

func (k *Relay) register(c *Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down || k.ctx.Err() != nil {
		return false
	}
	k.conns[c] = struct{}{}
	return true
}

func (k *Relay) forget(c *Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
}

// flows waits while the relay is held; false when ctx ends first.
func (k *Relay) flows(ctx context.Context) bool {
	for {
		k.mu.Lock()
		flowing, held := k.flowing, k.holds > 0
		k.mu.Unlock()
		if !held {
			return ctx.Err() == nil
		}
		select {
		case <-flowing:
		case <-ctx.Done():
			return false
		}
	}
}

// begin counts a request whose outcome has to be learnt, unless the relay is held: then it waits.
func (k *Relay) begin(ctx context.Context) bool {
	for k.flows(ctx) {
		k.mu.Lock()
		if k.holds == 0 {
			if k.finishing++; k.finishing == 1 {
				k.settled = make(chan struct{})
			}
			k.mu.Unlock()
			return true
		}
		k.mu.Unlock()
	}
	return false
}

func (k *Relay) finished() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.finishing--; k.finishing == 0 {
		close(k.settled)
	}
}

// reset closes a connection with RST rather than FIN, as a crash would.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}
