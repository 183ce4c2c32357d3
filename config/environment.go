package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// envPrefix begins the names of all environment variables that are ours.
const envPrefix = "SHARDWAY_"

// envServer is package fleet's: the database server that the sandbox and the tests start.
const envServer = envPrefix + "SERVER"

// serviceLink matches what Kubernetes puts into the environment of every pod for a service that is called shardway or shardway-something.
var serviceLink = regexp.MustCompile(`_SERVICE_(HOST|PORT(_\w+)?)=|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=|_PORT=(tcp|udp|sctp)://`)

// CheckEnvironment returns an error for each SHARDWAY_ variable of environ, which is as os.Environ gives it, that is not a key's; it suggests the
// nearest key's. SHARDWAY_SERVER and Kubernetes' variables for a service called shardway pass.
func CheckEnvironment(environ []string) error {
	known := map[string]bool{envServer: true}
	var names []string
	for _, k := range keys() {
		known[k.envName()] = true
		names = append(names, k.envName())
	}
	var errs []error
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, envPrefix) || known[name] || serviceLink.MatchString(variable) {
			continue
		}
		if best := nearestVariable(name, names); best != "" {
			errs = append(errs, fmt.Errorf("unknown environment variable %s; did you mean %s?", name, best))
		} else {
			errs = append(errs, fmt.Errorf("unknown environment variable %s; configs/shardway.yaml shows every key, and each is a variable", name))
		}
	}
	return errors.Join(errs...)
}

// SuggestFlag adds the nearest flag's name to the error of parsing flags, if that is about an unknown one.
func SuggestFlag(fs *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if best := nearest(unknown.GetSpecifiedName(), names); best != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, best)
	}
	return err
}

// nearestVariable compares what follows the prefix, which says nothing, and takes a name without its section too.
func nearestVariable(name string, names []string) string {
	rest := strings.TrimPrefix(name, envPrefix)
	short := make([]string, len(names))
	for i, n := range names {
		short[i] = strings.TrimPrefix(n, envPrefix)
	}
	if best := nearest(rest, short); best != "" {
		return envPrefix + best
	}
	for _, n := range names {
		if strings.HasSuffix(n, "_"+strings.ToUpper(rest)) {
			return n
		}
	}
	return ""
}

// WithoutOurs returns environ without the SHARDWAY_ variables: for a process that is told everything by flags and must not be touched by what its
// parent was told, as the proxies that tests start.
func WithoutOurs(environ []string) []string {
	var others []string
	for _, variable := range environ {
		if !strings.HasPrefix(variable, envPrefix) {
			others = append(others, variable)
		}
	}
	return others
}
