package api_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	sys "golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
)

// mute is a client that asks and does not read.
type mute struct {
	t    *testing.T
	conn *net.UnixConn
	n    int
}

func newMute(t *testing.T, socket string) *mute {
	conn, answer := send(t, socket, upgrade)
	if answer != http.StatusSwitchingProtocols {
		t.Fatalf("status %d", answer)
	}
	return &mute{t: t, conn: conn}
}

// waiting is how many bytes it could read.
func (m *mute) waiting() (n int) {
	raw, err := m.conn.SyscallConn()
	if err != nil {
		m.t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) { n, err = sys.IoctlGetInt(int(fd), sys.TIOCINQ) })
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// spawn asks for a command, and returns when the answer is there.
func (m *mute) spawn() {
	before := m.waiting()
	m.n++
	_, err := fmt.Fprintf(m.conn, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"start":{"workspace":"hers","command":{"argv":["cat"]},`+
		`"stdin":true}}}`+"\n", m.n, fdapi.Spawn)
	if err != nil {
		m.t.Fatal(err)
	}
	until(m.t, "no answer", func() bool { return m.waiting() != before })
}

// read reads n answers, and returns how many of them are refusals.
func (m *mute) read(n int) (refused int) {
	m.t.Helper()
	r := bufio.NewReader(m.conn) // which drops what comes with the bytes
	for range n {
		line, err := r.ReadString('\n')
		if err != nil {
			m.t.Fatal(err)
		}
		if strings.Contains(line, `"error"`) {
			if refused++; !strings.Contains(line, "resource_exhausted") || !strings.Contains(line, "read the answers") {
				m.t.Errorf("refused with %s", line)
			}
		}
	}
	return refused
}

// The kernel bounds the descriptors of the daemon's user that are on their way, over all clients together. One who does not
// read gets a part of them, on however many connections, and others are served.
func TestAnswersThatNobodyReads(t *testing.T) {
	var caller atomic.Pointer[principal.Principal]
	mallory, bob := principal.Principal{Kind: principal.User, UID: 1001, GID: 1001}, alice
	caller.Store(&bob)
	socket, server := apitest.ServeAs(t, &apitest.Gate{}, func() principal.Principal { return *caller.Load() },
		api.Options{Descriptors: 240}) // 30 for one, 120 for all
	create(t, socket, "demo")
	caller.Store(&mallory)
	create(t, socket, "hers")
	var all []*mute
	for range 3 {
		m := newMute(t, socket)
		for range 8 {
			m.spawn()
		}
		all = append(all, m)
	}
	caller.Store(&bob)
	c, _ := handOver(t, socket)
	if _, err := ask(t, c, fdapi.Spawn, spawn("demo", "true"), nil); err != nil {
		t.Errorf("somebody else's command: %v", err)
	}
	if n := server.Held(mallory.Owner()); n > 30 {
		t.Errorf("%d descriptors are on their way", n)
	}
	// The end of the connection does not take them off it.
	if err := all[0].conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	caller.Store(&mallory)
	another := newMute(t, socket)
	another.spawn()
	if another.read(1) != 1 {
		t.Error("one that half closed its connection gets more")
	}
	refused := 0
	for _, m := range all {
		refused += m.read(8)
	}
	if got := 24 - refused; got != 10 {
		t.Errorf("%d commands were started", got)
	}
	another.spawn() // all was read
	if another.read(1) != 0 {
		t.Error("one who has read gets nothing")
	}
	all[0].conn.Close()
}
