package differential

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Step is one operation of a program: a command, and how its outcomes are compared.
type Step struct {
	// Cmd is the command without its "$db".
	Cmd bson.D
	// Drain says that the reply has a cursor that is read to its end, with Batch as each getMore's batchSize (0: none given).
	Drain bool
	Batch int32
	// Kill gives the cursor up after the first batch: killCursors, and then a getMore that must fail.
	Kill bool
	// Ordered compares documents in their order, else as a multiset.
	Ordered bool
	// Loose compares numbers by value, since which of several equal ones is shown is open.
	Loose bool
	// Sets names fields whose arrays' order is open; "values" is that of distinct.
	Sets []string
	// Twice repeats the command under the same lsid and txnNumber, as a driver does that lost the reply.
	Twice bool
}

// Program is what one seed makes.
type Program struct {
	Seed  uint64
	Steps []Step
}

// Config says what may be generated.
type Config struct {
	// Repeats allows steps that are sent twice: not across flips, where a test server's memory of them is no evidence.
	Repeats bool
}

// New makes the program of a seed with n steps.
func New(seed uint64, n int, c Config) Program {
	g := generator{r: rand.New(rand.NewPCG(seed, 0x5ead)), c: c}
	p := Program{Seed: seed}
	for _, coll := range collections { // something to work on
		for from := 0; from < documents/2; from += 20 {
			p.Steps = append(p.Steps, g.insertRange(coll, from, from+20))
		}
	}
	for len(p.Steps) < n {
		p.Steps = append(p.Steps, g.step())
	}
	return p
}

// Transcript is the program for a shell that is connected to the proxy, and then for one that is connected to a server.
func (p Program) Transcript() string {
	var b strings.Builder
	fmt.Fprintf(&b, "// seed %d; on the proxy first:\nuse diff\n", p.Seed)
	for _, c := range collections {
		if c.key != "" {
			fmt.Fprintf(&b, "sh.shardCollection('diff.%s', {'%s': 'hashed'})\n", c.name, c.key)
		}
	}
	b.WriteString("// on both:\n")
	for i, s := range p.Steps {
		fmt.Fprintf(&b, "r = db.runCommand(EJSON.parse(%s, {relaxed: false}))", quote(extended(s.Cmd)))
		if s.Twice {
			b.WriteString(" // twice, with one lsid and txnNumber")
		}
		b.WriteByte('\n')
		if s.Drain {
			batch := ""
			if s.Batch > 0 {
				batch = fmt.Sprintf(", batchSize: %d", s.Batch)
			}
			fmt.Fprintf(&b, "while (r.cursor && r.cursor.id != 0) { r = db.runCommand({getMore: r.cursor.id, collection: '%s'%s}) } // step %d\n", s.Cmd[0].Value, batch, i)
		}
	}
	return b.String()
}

func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

func extended(d any) string {
	text, err := bson.MarshalExtJSON(d, true, false)
	if err != nil {
		return fmt.Sprintf("%v (%v)", d, err)
	}
	return string(text)
}
