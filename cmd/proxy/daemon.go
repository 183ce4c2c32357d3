package main

import (
	"context"
	"errors"

	"github.com/rs/zerolog"

	"github.com/shardway/shardway/config"
)

// serve is the daemon's life.
func serve(ctx context.Context, cfg config.Config, log zerolog.Logger) error {
	return errors.New("no router yet")
}
