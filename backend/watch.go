package backend

import (
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// watch starts the backend's one goroutine: it follows the topology and reaps idle connections.
func (b *Backend) watch() error {
	sub, err := b.topo.Subscribe()
	if err != nil {
		return err
	}
	b.watching.Add(1)
	go func() {
		defer b.watching.Done()
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		var last description.Topology
		for {
			select {
			case <-b.life.Done():
				return
			case <-ticker.C:
				b.tick.Add(1)
				b.inspect()
			case d, ok := <-sub.Updates:
				if !ok {
					return
				}
				b.observe(last, d)
				last = d
			}
		}
	}()
	return nil
}

// observe acts on a change of the topology.
func (b *Backend) observe(last, now description.Topology) {
	b.learn(now)
	before := make(map[address.Address]description.ServerKind, len(last.Servers))
	for i := range last.Servers {
		before[last.Servers[i].Addr] = last.Servers[i].Kind
	}
	for i := range now.Servers {
		s := &now.Servers[i]
		was := before[s.Addr]
		delete(before, s.Addr)
		if was == s.Kind {
			continue
		}
		b.cfg.Log.Info().Str("backend", b.cfg.ID).Str("host", s.Addr.String()).
			Stringer("was", was).Stringer("is", s.Kind).AnErr("because", s.LastError).Msg("a backend's server changed its state")
	}
	for addr := range before {
		b.forget(addr)
	}
}

// hostChanged is called by the driver for every change of a server's description; unlike a
// subscription it misses none. A host whose monitor lost it has closed our connections too, or cannot
// be reached: they are not used again.
func (b *Backend) hostChanged(e *event.ServerDescriptionChangedEvent) {
	unknown := description.ServerKind(description.Unknown).String()
	if e.NewDescription.Kind != unknown || e.PreviousDescription.Kind == unknown {
		return
	}
	if p := (*b.pools.Load())[e.Address]; p != nil {
		p.clear(false)
	}
}

// silentTicks is for how long a host must have been silent to its monitor for the requests in flight
// to be given up. One silence may be our own pause; the monitor asks again at once.
const silentTicks = 2

// inspect reaps idle connections, and cuts those of hosts that are black-holed: who waits for their
// replies would wait for ever. Other losses show on the sockets themselves.
func (b *Backend) inspect() {
	d := b.topo.Description()
	for addr, p := range *b.pools.Load() {
		p.reap()
		if !silent(d, addr) {
			p.silentFor = 0
			continue
		}
		if p.silentFor++; p.silentFor == silentTicks {
			p.clear(true)
		}
	}
}

// silent reports whether addr's monitor gets no answer at all.
func silent(d description.Topology, addr address.Address) bool {
	for i := range d.Servers {
		if s := &d.Servers[i]; s.Addr == addr {
			return s.Kind == description.Unknown && s.LastError != nil && isTimeout(s.LastError)
		}
	}
	return false
}

// reportDial tells the topology that a connection to addr could not be made, so that requests wait for
// the monitor to find the host again instead of each trying for itself.
func (b *Backend) reportDial(addr address.Address, err error) {
	if s := b.server(addr); s != nil {
		s.ProcessHandshakeError(topology.ConnectionError{Wrapped: err}, math.MaxUint64, nil)
	}
}

// report tells the topology of an error on an established connection: a network error or a
// state-change error in a reply.
func (b *Backend) report(c *conn, err error) {
	s := b.server(c.pool.addr)
	if s == nil {
		return
	}
	if s.ProcessError(err, c) == driver.ConnectionPoolCleared {
		c.pool.clear(false)
	}
}

func (b *Backend) server(addr address.Address) *topology.Server {
	s, err := b.topo.FindServer(description.Server{Addr: addr})
	if err != nil || s == nil {
		return nil
	}
	return s.Server
}

var _ mnet.Describer = (*conn)(nil)
