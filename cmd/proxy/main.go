// Command proxy, installed as shardway, is the sharding proxy and its operator's tools: "serve" is
// the daemon, "sandbox" a whole fleet on one machine to try it out.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/shardway/shardway/config"
)

func main() {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00" // what happens to a map takes milliseconds
	// The first signal asks for an orderly end; a second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := rootCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "shardway:", err)
		os.Exit(1)
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "shardway",
		Short:         "A sharding proxy that speaks the MongoDB wire protocol",
		SilenceUsage:  true, // an error's own sentence is what helps
		SilenceErrors: true, // main writes it
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return config.SuggestFlag(cmd.Flags(), err) })
	root.AddCommand(serveCommand(), sandboxCommand(), versionCommand())
	return root
}
