package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

// CheckProofs is what audit check-proof does with a file: how many records it finds proved.
func CheckProofs(b []byte, keys checkpoint.Keys) (int64, error) {
	v, err := checkProofs(bytes.NewReader(b), keys)
	return v.Records, err
}

// Settings returns what up would write over old for a data and a runtime directory.
func Settings(old []byte, data, runtime string) (map[string]any, error) {
	i := &instance{data: data, runtime: runtime}
	return mergeSettings(old, i.brokerSettings(account{999, 995}, "/usr/libexec/carrel/carrel-executor",
		"/usr/libexec/carrel/carrel-egress"))
}

var (
	CheckDir  = checkDir
	Enterable = enterable
	RunTool   = runTool
	HeldBy    = heldBy
	Family    = family
)

// IDsLeft is what doctor says of the ledger in a data directory.
func IDsLeft(data string, first, count uint32) (probe.Result, bool) {
	return (&instance{data: data}).checkIDs(first, count)
}

// Running reports whether the pid file name in the runtime directory dir names a
// process that lives.
func Running(dir, name string) bool {
	_, held, ok := (&instance{runtime: dir}).running(name)
	if ok {
		held.Close()
	}
	return ok
}

// DetachKeys passes in through the filter of attach.
var DetachKeys = func(in string) (out string, detached bool) {
	d := &detachKeys{r: &oneByOne{in}, detach: func() { detached = true }}
	buf := make([]byte, 16)
	for {
		n, err := d.Read(buf)
		out += string(buf[:n])
		if err != nil {
			return out, detached
		}
	}
}

type oneByOne struct{ s string }

func (o *oneByOne) Read(p []byte) (int, error) {
	if o.s == "" {
		return 0, io.EOF
	}
	p[0] = o.s[0]
	o.s = o.s[1:]
	return 1, nil
}

// ObjectOf is a message of the API as -o json prints it.
func ObjectOf(m proto.Message) any { return objectOf(m) }

// Render is what a table with those cells, and then a text, print to a terminal.
func Render(f *os.File, cells []string, t string) error {
	table := newTable(0, "A", "B")
	table.add(cells...)
	return both{table, text(t)}.render(f)
}

// Tail is tail.
var Tail = tail

// Give is give for a user with that id.
func Give(dir string, uid uint32) error { return give(dir, account{uid, uid}) }

// Bounded is bounded.
var Bounded = bounded

// EscapeJSON is escapeJSON.
var EscapeJSON = escapeJSON

// ItemOf is an approval as the watch shows it.
var ItemOf = itemOf

// LastLines is what logs --tail prints of a text.
func LastLines(n, text string) (string, error) {
	var l tailLines
	err := l.Set(n)
	return string(l.of([]byte(text))), err
}

// Holders are the workspaces that were given a key in the lines of a log.
func Holders(key string, lines ...string) []string {
	h := holders{key: key, open: map[int64]string{}}
	for _, l := range lines {
		h.read([]byte(l))
	}
	return h.names
}

// DoctorText is what doctor prints for checks, and SameVersion what it says of a daemon.
func DoctorText(checks []probe.Result, all bool) string {
	return doctorText(doctorView{Checks: checks}, all)
}

var SameVersion = sameVersion

// BrokerOf is what doctor says of the broker of an instance with that runtime directory.
func BrokerOf(ctx context.Context, runtime string) (probe.Result, bool) {
	return (&instance{data: runtime + "-data", runtime: runtime}).checkBroker(ctx)
}

// LiveUnits is liveUnits.
var LiveUnits = liveUnits

// ErrorText is errorText.
var ErrorText = errorText

// HostsSeen returns what takes measurements of connections and says what is known of a host then.
func HostsSeen() func(host string, m *carrelv1.ListConnectionsResponse, now time.Time) string {
	var s hostsSeen
	return func(host string, m *carrelv1.ListConnectionsResponse, now time.Time) string {
		s.take(m, now)
		h := s.hosts[host]
		return strings.TrimSpace(fmt.Sprintf("open %d ended %d refused %d sent %d +%v received %d +%v, newest %d %s", h.open, h.ended, h.refused,
			h.sent, h.sentRate, h.received, h.recvRate, s.newest, h.why))
	}
}

// ClientToken reads or makes the file of the token of MCP's clients; PrivateSocket listens on a socket of this user's own.
var (
	ClientToken   = clientToken
	PrivateSocket = privateSocket
)

// WithFiles is a question with the files that it names, where an inventory has these hosts.
func WithFiles(question string, hosts ...string) (string, error) {
	k := &asker{app: &app{}}
	k.served.Remotes = hosts
	return k.withFiles(question)
}

// AsData is a text as the agent gets it.
var AsData = asData

// Shell runs a command of a person's own.
func Shell(ctx context.Context, command string) (string, error) {
	return (&asker{app: &app{}}).shell(ctx, command, false)
}

// Ask is how a person at a terminal answers a question.
func Ask(ctx context.Context, in, out *os.File, m *carrelv1.Approval) (kind string, files []string, err error) {
	a := &app{}
	a.In, a.Err = in, out
	r := a.prompt(ctx, m, false, false)
	return string(r.kind), r.files, r.err
}
