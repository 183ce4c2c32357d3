package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/shardway/shardway/fleet"
)

// Run starts the sandbox and keeps it running until ctx ends, which is no error. When it returns, no
// process of it is left.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	s := &sandbox{options: o}
	defer func() {
		err = errors.Join(err, s.close())
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil // told to stop while something was under way
		}
	}()
	if err := s.startServers(ctx); err != nil {
		return err
	}
	if err := s.startProxies(ctx); err != nil {
		return err
	}
	s.announce()

	var keepers sync.WaitGroup
	defer keepers.Wait()
	for i, server := range s.fleet.Servers {
		keepers.Go(func() { s.keepServer(ctx, backendID(i), server) })
	}
	for _, p := range s.proxies {
		keepers.Go(func() { s.keepProxy(ctx, p) })
	}
	if o.Sample {
		if err := s.loadSample(ctx); err != nil && ctx.Err() == nil {
			s.say("The sample could not be loaded: %v", err)
		}
	}
	if ctx.Err() == nil {
		s.sayWhatToType()
	}
	<-ctx.Done()
	s.say("\nStopping.")
	return nil
}

type sandbox struct {
	options Options
	fleet   *fleet.Fleet
	proxies []*proxy
	ports   []*fleet.Port
	logs    string // the directory of the proxies' logs
	ownLogs bool   // which is ours to remove

	sayMu sync.Mutex
	bar   bool // the last line is a progress bar, without a line end; guarded by sayMu
}

func (s *sandbox) startServers(ctx context.Context) error {
	o := fleet.Options{Program: s.options.Server, QuickInstall: true, Log: s.options.Say}
	program, err := fleet.Find(ctx, o)
	if err != nil {
		return err
	}
	o.Program, o.Dir, o.SyncOnCommit = program.Path, s.options.Dir, true
	s.say("Starting %d database servers: %s", s.options.Backends, program.Path)
	switch program.Kind {
	case fleet.SecantusPy:
		s.say("This is SecantusDB's Python build: its durability and speed are a demonstration's. With mongod on PATH, that is used.")
	case fleet.SecantusRS:
		s.say("This is SecantusDB, a stand-in for mongod; docs/test-server.md tells the differences. With mongod on PATH, that is used.")
	}
	s.fleet, err = fleet.Start(ctx, s.options.Backends, o)
	return err
}

func (s *sandbox) startProxies(ctx context.Context) error {
	addrs, ports, err := addresses(s.options.Listen, s.options.Proxies)
	s.ports = ports
	if err != nil {
		return err
	}
	if s.logs = s.options.Dir; s.logs == "" {
		if s.logs, err = os.MkdirTemp("", "shardway-sandbox-"); err != nil {
			return err
		}
		s.ownLogs = true
	}
	for i, addr := range addrs {
		p := newProxy(s.options, i+1, addr, s.logs, s.fleet)
		if err := p.start(ctx); err != nil {
			return err
		}
		s.proxies = append(s.proxies, p)
	}
	return nil
}

// announce writes what programs wait for. Nothing else is ever written to Out.
func (s *sandbox) announce() {
	var hosts []string
	for _, p := range s.proxies {
		fmt.Fprintf(s.options.Out, "uri: %s\n", p.uri())
		hosts = append(hosts, p.addr)
	}
	if len(hosts) > 1 {
		fmt.Fprintf(s.options.Out, "all: mongodb://%s/\n", strings.Join(hosts, ","))
	}
}

// close ends every child: first the proxies, which drain, then the servers.
func (s *sandbox) close() error {
	var wg sync.WaitGroup
	for _, p := range s.proxies {
		wg.Go(p.stop)
	}
	wg.Wait()
	var err error
	if s.fleet != nil {
		err = s.fleet.Close()
	}
	for _, p := range s.ports {
		p.Release()
	}
	if s.ownLogs {
		err = errors.Join(err, os.RemoveAll(s.logs))
	}
	return err
}

// say writes a line for people, after the progress bar if there is one.
func (s *sandbox) say(format string, args ...any) {
	s.sayMu.Lock()
	defer s.sayMu.Unlock()
	if s.bar {
		fmt.Fprintln(s.options.Say)
		s.bar = false
	}
	fmt.Fprintf(s.options.Say, format+"\n", args...)
}

func (s *sandbox) sayWhatToType() {
	uri := s.proxies[0].uri()
	s.say(`
Shardway is running. Try, in another terminal:
  mongosh %s
    sh.status()                                                 // backends, databases, partitions
    use sample
    db.orders.find({customer: "c00042"})                        // one partition, one backend
    db.orders.find({country: "PT"}).sort({placed: -1}).limit(3) // all partitions, merged
    db.orders.aggregate([{$group: {_id: "$country", total: {$sum: "$total"}}}])
    db.orders.getShardDistribution()
    sh.shardCollection("mydb.mycollection", {userId: "hashed"}) // a collection of your own`, uri)
	for i, server := range s.fleet.Servers {
		s.say("  kill -9 %d   # %s, directly at %s; it is started again", server.PID(), backendID(i), server.Addr())
	}
	for _, p := range s.proxies {
		pid, _ := p.running()
		s.say("  kill -9 %d   # %s; so is this", pid, p.name)
	}
	s.say("Logs: %s and server.log in %s/backend*. Ctrl-C stops everything.", s.proxies[0].logPath, s.fleet.Dir())
}
