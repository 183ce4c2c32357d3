package sandbox

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/shardway/shardway/fleet"
)

// addresses chooses n listening addresses: from the wished one upwards, each the first free one, or
// any free ones where the wished port is 0. The holds keep other sandboxes and fleets off the ports.
func addresses(wished string, n int) (addrs []string, holds []*fleet.Port, err error) {
	host, portText, err := net.SplitHostPort(wished)
	if err != nil {
		return nil, nil, err
	}
	number, err := strconv.Atoi(portText)
	if err != nil || number < 0 || number > 65535 {
		return nil, nil, fmt.Errorf("--listen %q: the port must be a number below 65536", wished)
	}
	for len(addrs) < n {
		p, err := takePort(host, &number)
		if err != nil {
			return nil, holds, err
		}
		holds = append(holds, p)
		addrs = append(addrs, net.JoinHostPort(host, strconv.Itoa(p.Number())))
	}
	return addrs, holds, nil
}

// takePort takes the first free port from *next on, and moves *next behind it; 0 stays 0.
func takePort(host string, next *int) (*fleet.Port, error) {
	if *next == 0 {
		return fleet.TakeFreePort(host)
	}
	for ; *next <= 65535; *next++ {
		p, err := fleet.TakePort(host, *next)
		if errors.Is(err, fleet.ErrPortTaken) {
			continue
		}
		*next++
		return p, err
	}
	return nil, errors.New("no port is free")
}
