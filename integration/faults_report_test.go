package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet"
)

// faultReport is what a run's logs say of it.
type faultReport struct {
	flips  map[string]int // by kind
	pauses []time.Duration
	// takeovers is how long after the death of a proxy one of its changes was taken over.
	takeovers []time.Duration
	// closings is how long gates were closed; blameless is the longest without the time in which something was broken.
	closings  []time.Duration
	blameless time.Duration
	worst     string
}

// faultLine is what is read of a line of a proxy's log.
type faultLine struct {
	Time    time.Time `json:"time"`
	Message string    `json:"message"`
	NS      string    `json:"ns"`
	Kind    string    `json:"kind"`
	From    string    `json:"from"`
	Began   time.Time `json:"began"`
	Pause   float64   `json:"pause"`
	Closed  float64   `json:"closed"`
}

// report reads the proxies' logs.
func (w *faulty) report() faultReport {
	r := faultReport{flips: map[string]int{}}
	for i, name := range w.logs {
		f, err := os.Open(name)
		if err != nil {
			w.t.Error(err)
			continue
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var l faultLine
			if json.Unmarshal(lines.Bytes(), &l) == nil {
				w.read(&r, i, l)
			}
		}
		_ = f.Close()
	}
	slices.Sort(r.pauses)
	slices.Sort(r.takeovers)
	slices.Sort(r.closings)
	return r
}

func (w *faulty) read(r *faultReport, proxy int, l faultLine) {
	switch l.Message {
	case "flip":
		r.flips[l.Kind]++
		r.pauses = append(r.pauses, milliseconds(l.Pause))
	case "gate opened":
		d := milliseconds(l.Closed)
		r.closings = append(r.closings, d)
		if d -= w.broken(l.Time.Add(-d), l.Time); d > r.blameless {
			r.blameless, r.worst = d, fmt.Sprintf("proxy %d at %s, %s, closed %.0f ms", proxy, l.Time.Format("15:04:05.000"), l.NS, l.Closed)
		}
	case "a change of another process is taken over and ended":
		if died, ok := w.died(l.From, l.Began, l.Time); ok {
			r.takeovers = append(r.takeovers, l.Time.Sub(died))
		}
	}
}

func milliseconds(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// faultMend is what everybody may need, after a fault, to find that it is over: sockets time out, servers are discovered.
const faultMend = 2 * time.Second

// broken is how much of a time something was broken, or was being mended.
func (w *faulty) broken(from, to time.Time) (sum time.Duration) {
	for _, f := range w.made { // one after the other, but the mending of one may reach into the next
		end := f.to.Add(faultMend)
		if f.from.After(from) {
			from = f.from
		}
		if end.After(to) {
			end = to
		}
		if end.After(from) {
			sum += end.Sub(from)
			from = end
		}
	}
	return sum
}

// died returns when the proxy of that name was killed first between two moments. One that was stopped, or cut off, and lost its change so, was not.
func (w *faulty) died(server string, from, to time.Time) (time.Time, bool) {
	for _, f := range w.made {
		_, port, _ := strings.Cut(w.proxies[f.proxy].Addr(), ":")
		if f.kind == "kill proxy" && f.from.After(from) && f.from.Before(to) && strings.HasSuffix(server, ":"+port) {
			return f.from, true
		}
	}
	return time.Time{}, false
}

// String is the report for people.
func (r faultReport) String() string {
	return fmt.Sprintf("flips %v; pauses at %d of them: %s; gates closed %d times: %s, at most %.0f ms beside faults; changes of dead proxies taken over after (%d): %s",
		r.flips, len(r.pauses), quantiles(r.pauses), len(r.closings), quantiles(r.closings), ms(r.blameless), len(r.takeovers), quantiles(r.takeovers))
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantiles of sorted durations.
func quantiles(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	return fmt.Sprintf("p50 %.0f ms, p99 %.0f ms, longest %.0f ms", ms(all[len(all)/2]), ms(all[len(all)*99/100]), ms(all[len(all)-1]))
}

// explain logs, when the run has failed, what is recorded of unfinished changes, the sizes of what is there, and the last warnings of each proxy.
func (w *faulty) explain() {
	if !w.t.Failed() {
		return
	}
	for i, s := range w.fleet.Servers {
		w.describe(fmt.Sprintf("b%d", i+1), s)
	}
	for i, file := range w.logs {
		w.t.Logf("warnings of proxy %d: %s", i, strings.Join(lastWarnings(file, 40), "\n"))
	}
}

// describe logs what the proxies have recorded at a backend, and its collections: what a late write has made has few documents.
func (w *faulty) describe(name string, s *fleet.Server) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 20*time.Second)
	defer cancel()
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + s.Addr() + "/?directConnection=true"))
	if err != nil {
		w.t.Log(name, err)
		return
	}
	defer func() { _ = client.Disconnect(ctx) }()
	for _, c := range [][2]string{{catalog.DB, "reshapes"}, {catalog.MemberDB, "instances"}, {catalog.MemberDB, "closings"}, {catalog.MemberDB, "answers"}} {
		var docs []bson.Raw
		cur, err := client.Database(c[0]).Collection(c[1]).Find(ctx, bson.D{})
		if err == nil {
			err = cur.All(ctx, &docs)
		}
		w.t.Logf("%s, %s: %v (%v)", name, c[1], docs, err)
	}
	names, err := client.Database("f").ListCollectionNames(ctx, bson.D{})
	w.t.Logf("%s has %d collections (%v)", name, len(names), err)
	for _, coll := range names {
		n, err := client.Database("f").Collection(coll).CountDocuments(ctx, bson.D{})
		w.t.Logf("%s: %s has %d documents (%v)", name, coll, n, err)
	}
}

// lastWarnings are the last n lines of a log that are warnings or worse.
func lastWarnings(file string, n int) []string {
	text, err := os.ReadFile(file)
	if err != nil {
		return []string{err.Error()}
	}
	var lines []string
	for _, l := range strings.Split(string(text), "\n") {
		if strings.Contains(l, `"level":"warn"`) || strings.Contains(l, `"level":"error"`) {
			lines = append(lines, l)
		}
	}
	return lines[max(0, len(lines)-n):]
}
