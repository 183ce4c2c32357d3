package backend

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"

	"github.com/shardway/shardway/wire"
)

// past is a deadline that has passed at any time: it ends whatever read or write is under way.
var past = time.Unix(1, 0)

// conn is one connection to a server of the fleet, handshaken and authenticated. Requests are written and answered in order (exchange.go); whether it
// has one request at a time or several is the pool's decision (share.go).
type conn struct {
	// Static after dial.
	pool *pool
	raw  net.Conn // the socket
	nc   net.Conn // what is read and written: raw, or TLS over it
	desc description.Server
	gen  uint64
	// runPump is pump, bound once.
	runPump func()

	// Guarded by pool.mu.
	idleSince int64
	users     int   // requests that have it
	shared    bool  // short requests share it
	slow      Shape // of the request that has it, if that is one that waits

	// Guarded by mu, which is not held over a system call.
	mu       sync.Mutex
	nextID   int32
	queue    queue        // the calls that were sent or are about to be, in the order of their replies
	out      *wire.Buffer // requests that wait for the writer; nil when there are none
	writing  bool         // a goroutine writes, or is about to
	reading  bool         // a goroutine reads, and owns in
	pumping  bool         // the connection's own goroutine is about to read
	last     *Call        // whose reply came last; only to be compared
	ended    []ending     // of the calls that were given away; whoever reads tells their takers
	spare    []ending     // memory for that
	read     bool         // something was read since the last reply was handed out
	came     time.Time    // when it was
	in       inbox
	orphans  int   // replies to abandoned calls that came, and for which the pool still counts a user
	deadline bool  // a deadline is set on nc
	failure  error // why the connection is of no use any more

	// progress is when the last reply came, or when the first of the requests that are in flight was sent; by now().
	progress atomic.Int64
	// gathering says that a writer lets others add to what it will write.
	gathering atomic.Bool
	dying     atomic.Bool // cut, whoever reads or writes
	closed    atomic.Bool
}

// began is what now counts from.
var began = time.Now()

// now is a clock that costs little to read and store.
func now() time.Duration { return time.Since(began) }

// cut ends the read or write under way on the connection, from any goroutine; it is of no use afterwards.
func (c *conn) cut() {
	c.dying.Store(true)
	_ = c.nc.SetDeadline(past)
}

func (c *conn) close() {
	if c.closed.CompareAndSwap(false, true) {
		_ = c.raw.Close() // not TLS's Close, which writes and may wait for a dead peer
	}
}

// arm sets when reads and writes end; the zero time means never.
func (c *conn) arm(deadline time.Time) error {
	if deadline.IsZero() && !c.deadline {
		return nil
	}
	c.deadline = !deadline.IsZero()
	return c.nc.SetDeadline(deadline)
}

// Parts of an OP_MSG.
const (
	requiredFlags   = 0xFFFF
	minDocumentSize = 5
)

// replyBody checks that m is a whole OP_MSG answering request id with one body section, and returns it.
func replyBody(m wire.Message, id int32) ([]byte, error) {
	le := binary.LittleEndian
	if m.Header.OpCode != wire.OpMsg {
		return nil, fmt.Errorf("%w: opcode %d", errGarbage, m.Header.OpCode)
	}
	if m.Header.ResponseTo != id {
		return nil, fmt.Errorf("%w: it answers request %d, not %d", errGarbage, m.Header.ResponseTo, id)
	}
	msg := m.Buf.B
	if len(msg) < wire.MsgBodyStart+minDocumentSize {
		return nil, fmt.Errorf("%w: a reply of %d bytes", errGarbage, len(msg))
	}
	flags := wire.Flags(le.Uint32(msg[wire.HeaderLen:]))
	if flags&requiredFlags&^wire.ChecksumPresent != 0 { // moreToCome too: nobody asked for more
		return nil, fmt.Errorf("%w: flags %#x", errGarbage, uint32(flags))
	}
	if flags&wire.ChecksumPresent != 0 {
		msg = msg[:len(msg)-4]
	}
	if kind := msg[wire.MsgBodyStart-1]; kind != 0 {
		return nil, fmt.Errorf("%w: a section of kind %d", errGarbage, kind)
	}
	body := msg[wire.MsgBodyStart:]
	if len(body) < minDocumentSize || int(le.Uint32(body)) != len(body) || body[len(body)-1] != 0 {
		return nil, fmt.Errorf("%w: its document's length is not the section's", errGarbage)
	}
	return body, nil
}

func newConn(p *pool, nc net.Conn) *conn {
	nc = wire.NewSocket(nc)
	c := &conn{pool: p, raw: nc, nc: nc}
	c.runPump = c.pump
	return c
}

// dial makes a connection: TCP, TLS, hello, authentication; bounded by the connect timeout, ctx and until.
func (b *Backend) dial(ctx context.Context, p *pool, until time.Time) (*conn, error) {
	end := time.Now().Add(b.cfg.ConnectTimeout)
	if until.Before(end) {
		end = until
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	defer context.AfterFunc(b.life, cancel)()

	nc, err := b.dialer.DialContext(ctx, p.addr.Network(), p.addr.String())
	if err != nil {
		return nil, err
	}
	c := newConn(p, nc)
	if c.nc, err = b.secure(ctx, c.raw, p.addr); err != nil {
		c.close()
		return nil, err
	}
	if err := b.handshake.run(ctx, c); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// The rest makes conn a mnet.Describer, which the driver's handshake and error processing ask.

// Description is the server as it described itself in this connection's hello.
func (c *conn) Description() description.Server { return c.desc }

// ID names the connection for the driver's errors.
func (c *conn) ID() string { return c.pool.addr.String() }

// ServerConnectionID is not kept.
func (c *conn) ServerConnectionID() *int64 { return nil }

// DriverConnectionID is not used: the driver's pool does not know this connection.
func (c *conn) DriverConnectionID() int64 { return 0 }

// Address is the server's.
func (c *conn) Address() address.Address { return c.pool.addr }

// Stale reports whether the host was lost since the connection was made.
func (c *conn) Stale() bool { return c.pool.stale(c.gen) }

// OIDCTokenGenID is not used.
func (c *conn) OIDCTokenGenID() uint64 { return 0 }

// SetOIDCTokenGenID is not used.
func (c *conn) SetOIDCTokenGenID(uint64) {}
