package broker_test

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// FuzzRequests sends what it is given to a broker whose host is a double, by the real
// framing and dispatch, after a greeting. Whatever comes: each answer is JSON, the
// connection ends, and the host is asked for nothing but well-formed names, ids of the
// range and limits in bounds.
func FuzzRequests(f *testing.F) {
	if os.Getuid() != 0 {
		f.Skip("skipped: the broker serves root and the daemon's user only")
	}
	f.Add([]byte(`{"jsonrpc":"2.0","id":2,"method":"list"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		dir, err := os.MkdirTemp("/dev/shm", "broker-fuzz") // every line is synced, and this is no disk
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		h := newHost()
		life := lifecycle(t, dir, h)
		defer life.Close()
		s := &broker.Server{Life: life, Settings: testSettings(), Log: slog.New(slog.DiscardHandler)}
		a, z := socketPair(t)
		defer a.Close()
		served, err := s.Attach(z, nil)
		if err != nil {
			t.Fatal(err)
		}
		// The requests come when the greeting is answered: two that come together may be
		// handled in either order.
		if _, err := a.Write([]byte(`{"jsonrpc":"2.0","id":"h","method":"hello","params":{"version":1}}` + "\n")); err != nil {
			t.Fatal(err)
		}
		var hello [4096]byte
		if n, err := a.Read(hello[:]); err != nil || !strings.Contains(string(hello[:n]), `"result"`) {
			t.Fatalf("hello was answered %q, %v", hello[:n], err)
		}
		if _, err := a.Write(append(in, '\n')); err != nil && !errors.Is(err, unix.EPIPE) {
			t.Fatal(err)
		}
		_ = a.CloseWrite()
		out, err := io.ReadAll(a)
		if err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Fatal(err)
		}
		<-served.Done()
		for line := range strings.Lines(string(out)) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%q was answered with %q", in, line)
			}
		}
		for _, c := range h.reset() {
			step, name, _ := strings.Cut(c, " ")
			if name == "" && step == "EndProcesses" {
				continue
			}
			if !id.IsWorkspace(name) {
				t.Errorf("%q led to %q", in, c)
			}
		}
		for _, e := range life.Entries() {
			if e.IDs.Executor < first || e.IDs.Agent >= first+3000 || e.IDs != workspace.IDsFrom(e.IDs.Executor) {
				t.Errorf("%q led to the ids %+v", in, e.IDs)
			}
			if err := e.Limits.Validate(); err != nil || e.Limits.MemoryBytes > 2<<30 {
				t.Errorf("%q led to the limits %+v", in, e.Limits)
			}
			if e.Home != "/homes/"+string(e.Name) {
				t.Errorf("%q led to the home %q", in, e.Home)
			}
		}
	})
}
