package order

import (
	"os"
	"testing"

	"github.com/shardway/shardway/fleet/fleettest"
)

func TestMain(m *testing.M) { os.Exit(fleettest.Main(m)) }
