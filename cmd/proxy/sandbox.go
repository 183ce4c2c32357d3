package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/shardway/shardway/cmd/proxy/sandbox"
	"github.com/shardway/shardway/config"
)

func sandboxCommand() *cobra.Command {
	var o sandbox.Options
	cmd := &cobra.Command{
		Use:   "sandbox",
		Short: "Start database servers, proxies and a sample collection on this machine",
		Long: `Starts database servers and proxies in front of them, each a process of its own, and loads a sample
collection that splits as it grows. When it is ready it writes a line "uri: mongodb://HOST:PORT/" for each
proxy to standard output, and with several of them a line "all: mongodb://…". Whatever dies is started
again. Ctrl-C stops everything.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.CheckEnvironment(os.Environ()); err != nil {
				return err // the proxies, which get the same variables, would end at once
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			o.Self, o.Out, o.Say = self, os.Stdout, os.Stderr
			return sandbox.Run(cmd.Context(), o)
		},
	}
	o.Flags(cmd.Flags())
	return cmd
}
