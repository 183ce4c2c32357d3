// Package sandbox is a whole fleet on one machine, to try Shardway out: database servers, proxies in
// front of them, each a process of its own, and a sample collection that grows until it splits.
package sandbox

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/spf13/pflag"

	"github.com/shardway/shardway/config"
)

// Options are the sandbox's flags.
type Options struct {
	Backends          int          // database servers, each a backend
	Proxies           int          // proxies, all in front of the same backends
	Listen            string       // the first proxy's address; a taken port makes it the next free one, port 0 any
	Dir               string       // where data and logs stay; empty: a temporary directory
	Sample            bool         // load a sample collection
	MaxPartitionBytes config.Bytes // small, so that partitions split while one looks on
	Server            string       // database server program; empty: found or installed

	// Self is this program; the proxies run its command "serve".
	Self string
	// Out gets the lines for programs to read: uri: and all:.
	Out io.Writer
	// Say gets everything for people to read.
	Say *os.File
}

// Flags adds the sandbox's flags to fs; their values are o's.
func (o *Options) Flags(fs *pflag.FlagSet) {
	o.MaxPartitionBytes = 512 << 10
	fs.IntVar(&o.Backends, "backends", 3, "number of database servers")
	fs.IntVar(&o.Proxies, "proxies", 1, "number of proxies in front of them")
	fs.StringVar(&o.Listen, "listen", "127.0.0.1:27017", "address of the first proxy; the next free port if it is taken; port 0: each takes a free one")
	fs.StringVar(&o.Dir, "dir", "", "keep data and logs in this directory; it may be served again later (default: a temporary one)")
	fs.BoolVar(&o.Sample, "sample", true, "load a sample collection")
	fs.Var(&o.MaxPartitionBytes, "max-partition-bytes", "a partition that grows beyond this is split")
	fs.StringVar(&o.Server, "server", "", "database server program (default: mongod or what else is found, else one is installed)")
}

func (o *Options) validate() error {
	var errs []error
	if o.Backends < 1 || o.Backends > 64 {
		errs = append(errs, fmt.Errorf("--backends %d: between 1 and 64", o.Backends))
	}
	if o.Proxies < 1 || o.Proxies > 64 {
		errs = append(errs, fmt.Errorf("--proxies %d: between 1 and 64", o.Proxies))
	}
	if _, _, err := net.SplitHostPort(o.Listen); err != nil {
		errs = append(errs, fmt.Errorf("--listen %q is not HOST:PORT", o.Listen))
	}
	if o.MaxPartitionBytes < 1 {
		errs = append(errs, errors.New("--max-partition-bytes: at least 1"))
	}
	return errors.Join(errs...)
}
