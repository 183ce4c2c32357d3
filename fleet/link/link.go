// Package link is a TCP link with faults, for tests: a listener on loopback that passes bytes to a
// target until it is told to delay them, to swallow them or to cut them off.
package link

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// Link passes connections on to a target. All methods may be called at any time and from several
// goroutines; a fault holds for connections that are open and for those to come.
type Link struct {
	target   string
	listener net.Listener
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu      sync.Mutex // guards what follows
	delay   time.Duration
	cut     bool
	stalled chan struct{} // closed while bytes flow; an open one holds them back
	conns   map[net.Conn]struct{}
}

// New makes a link to target ("host:port") on a free loopback port. The caller must Close it.
func New(target string) (*Link, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	flowing := make(chan struct{})
	close(flowing)
	k := &Link{target: target, listener: l, ctx: ctx, cancel: cancel, stalled: flowing, conns: map[net.Conn]struct{}{}}
	k.wg.Go(k.accept)
	return k, nil
}

// Addr is the address clients connect to instead of the target's.
func (k *Link) Addr() string { return k.listener.Addr().String() }

// Delay makes every byte arrive d later, in both directions, without slowing the flow; zero ends it.
func (k *Link) Delay(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.delay = d
}

// Cut resets all connections and those that come, until Resume.
func (k *Link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = true
	for c := range k.conns {
		reset(c)
	}
}

// BlackHole holds back every byte in both directions, and new connections are accepted and hear
// nothing, until Resume: neither side can tell that the other is not just slow.
func (k *Link) BlackHole() {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.stalled:
		k.stalled = make(chan struct{})
	default:
	}
}

// Resume ends Cut and BlackHole. What was held back arrives; what was cut stays cut.
func (k *Link) Resume() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = false
	select {
	case <-k.stalled:
	default:
		close(k.stalled)
	}
}

// Conns is how many clients are connected.
func (k *Link) Conns() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.conns) / 2
}

// Close cuts everything and waits until nothing of the link runs.
func (k *Link) Close() error {
	k.cancel()
	err := k.listener.Close()
	k.Cut()
	k.wg.Wait()
	return err
}

func (k *Link) accept() {
	for {
		client, err := k.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors: not a reason to spin
			continue
		}
		k.wg.Go(func() { k.serve(client) })
	}
}

func (k *Link) serve(client net.Conn) {
	defer reset(client)
	if !k.flows() {
		return
	}
	var d net.Dialer
	server, err := d.DialContext(k.ctx, "tcp", k.target)
	if err != nil {
		return
	}
	defer reset(server)
	if !k.register(client, server) {
		return
	}
	defer k.forget(client, server)
	var pumps sync.WaitGroup
	pumps.Go(func() { k.pump(server, client) })
	pumps.Go(func() { k.pump(client, server) })
	pumps.Wait()
}

func (k *Link) register(conns ...net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut {
		return false
	}
	for _, c := range conns {
		k.conns[c] = struct{}{}
	}
	return true
}

func (k *Link) forget(conns ...net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range conns {
		delete(k.conns, c)
	}
}

// chunk is some bytes on their way and when they may arrive.
type chunk struct {
	data []byte
	due  time.Time
}

// pump passes bytes from one side to the other until either is closed, and then closes what it
// writes to as far as its reader goes: a half-closed connection stays half-closed.
func (k *Link) pump(to, from net.Conn) {
	chunks := make(chan chunk, 256)
	var reader sync.WaitGroup
	defer reader.Wait()
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	reader.Go(func() {
		defer close(chunks)
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 {
				c := chunk{data: append([]byte(nil), buf[:n]...), due: time.Now().Add(k.lateness())}
				select {
				case chunks <- c:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range chunks {
		if !k.hold(c.due) {
			break
		}
		if _, err := to.Write(c.data); err != nil {
			reset(from) // ends the reader; nobody is left to hear what it reads
			return
		}
	}
	if tcp, ok := to.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}

func (k *Link) lateness() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.delay
}

// hold waits until due and until bytes flow; false when the link has been closed.
func (k *Link) hold(due time.Time) bool {
	if wait := time.Until(due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-k.ctx.Done():
			return false
		}
	}
	return k.flows()
}

// flows waits while the link is a black hole; false when it has been closed.
func (k *Link) flows() bool {
	k.mu.Lock()
	stalled := k.stalled
	k.mu.Unlock()
	select {
	case <-stalled:
		return true
	case <-k.ctx.Done():
		return false
	}
}

// reset closes a connection with RST rather than FIN, as a crash or a firewall would.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}
