// Command getserver prints the path of the database server that tests and sandbox will use, after
// installing it if there is none. Continuous integration runs it first, so that no test's time
// limit has to cover a build.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/shardway/shardway/fleet"
)

func main() {
	quick := flag.Bool("quick", false, "where nothing is there, take what installs in seconds (the Python wheel)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	program, err := fleet.Find(ctx, fleet.Options{QuickInstall: *quick, Log: os.Stderr})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "getserver:", err)
		os.Exit(1)
	}
	fmt.Println(program.Path)
}
