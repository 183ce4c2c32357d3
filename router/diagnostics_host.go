package router

import (
	"context"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

var _ = register(func(r *Router) []Command {
	return []Command{
		{Name: "hostInfo", Help: "describes the machine", Run: r.hostInfo},
		{Name: "getCmdLineOpts", Admin: true, Help: "tells how the process was started", Run: r.getCmdLineOpts},
	}
})

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func buildRevision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}

func (r *Router) hostInfo(context.Context, *Request) (Reply, error) {
	mem := memoryMB()
	name, version := osRelease()
	return docReply(bson.D{
		{Key: "system", Value: bson.D{
			{Key: "currentTime", Value: bson.NewDateTimeFromTime(time.Now())},
			{Key: "hostname", Value: hostname()},
			{Key: "cpuAddrSize", Value: int32(strconv.IntSize)},
			{Key: "memSizeMB", Value: mem},
			{Key: "memLimitMB", Value: mem},
			{Key: "numCores", Value: int32(runtime.NumCPU())},
			{Key: "cpuArch", Value: arch()},
			{Key: "numaEnabled", Value: false},
		}},
		{Key: "os", Value: bson.D{{Key: "type", Value: osTitle()}, {Key: "name", Value: name}, {Key: "version", Value: version}}},
		{Key: "extra", Value: bson.D{{Key: "kernelVersion", Value: firstLine("/proc/sys/kernel/osrelease")}, {Key: "goVersion", Value: runtime.Version()}}},
	})
}

func osTitle() string {
	if runtime.GOOS == "linux" {
		return "Linux"
	}
	return osType()
}

// memoryMB is the machine's memory in MB, 0 where this system does not tell.
func memoryMB() int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	for _, line := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb >> 10
		}
	}
	return 0
}

// osRelease is the system's name and version.
func osRelease() (name, version string) {
	name, version = runtime.GOOS, "unknown"
	text, _ := os.ReadFile("/etc/os-release")
	for _, line := range strings.Split(string(text), "\n") {
		key, value, _ := strings.Cut(line, "=")
		switch value = strings.Trim(value, `"`); key {
		case "NAME":
			name = value
		case "VERSION_ID":
			version = value
		}
	}
	return name, version
}

func firstLine(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

func (r *Router) getCmdLineOpts(context.Context, *Request) (Reply, error) {
	argv := bson.A{}
	for _, a := range os.Args {
		argv = append(argv, withoutPassword(a))
	}
	parsed := bson.D{}
	if r.cfg.Server != "" {
		parsed = bson.D{{Key: "net", Value: bson.D{{Key: "advertised", Value: r.cfg.Server}}}}
	}
	return docReply(bson.D{{Key: "argv", Value: argv}, {Key: "parsed", Value: parsed}})
}

var connectionString = regexp.MustCompile(`mongodb(\+srv)?://[^@\s]*@`)

// withoutPassword takes the passwords of connection strings out of an argument.
func withoutPassword(arg string) string {
	return connectionString.ReplaceAllStringFunc(arg, func(s string) string {
		scheme, rest, _ := strings.Cut(s, "://")
		user, _, _ := strings.Cut(strings.TrimSuffix(rest, "@"), ":")
		if u, err := url.PathUnescape(user); err == nil {
			user = url.PathEscape(u)
		}
		return scheme + "://" + user + ":<password>@"
	})
}
