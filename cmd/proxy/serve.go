package main

import (
	"fmt"
	"io"
	"os"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/shardway/shardway/config"
	"github.com/shardway/shardway/router"
)

func serveCommand() *cobra.Command {
	var file string
	var check bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve clients in front of a fleet of backends",
		Example: `  shardway serve --listen :27017 --catalog a --backend a=mongodb://a1:27017/?replicaSet=a --backend b=mongodb://b1:27017/?replicaSet=b
  shardway serve --config shardway.yaml --check`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(file, cmd.Flags())
			if err != nil {
				return fmt.Errorf("configuration: %w", err)
			}
			if check {
				fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")
				return checkBackends(cmd.Context(), cfg, cmd.OutOrStdout())
			}
			return serve(cmd.Context(), cfg, os.Stderr)
		},
	}
	config.Flags(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "read this YAML file (configs/shardway.yaml shows every key)")
	cmd.Flags().BoolVar(&check, "check", false, "check the configuration and the backends, and exit")
	return cmd
}

// newLog writes one JSON object a line, or text for people, to w; recent gets the JSON in any case.
func newLog(c config.Log, w io.Writer, recent *router.RecentLog) zerolog.Logger {
	level, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		panic("BUG: a level that Validate let pass: " + c.Level)
	}
	if c.Format == "text" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: "15:04:05.000"}
	}
	return zerolog.New(zerolog.MultiLevelWriter(w, recent)).Level(level).With().Timestamp().Logger()
}
