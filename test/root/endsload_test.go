package root_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// However a daemon ends, at whatever moment, while commands, connections, requests to a model, tasks, terminals and uploads
// are under way, it starts again. After an orderly end its last record is the last line, and both verifiers find the record
// whole.
func TestEndsUnderLoad(t *testing.T) {
	m := newModeled(t, "")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	text, err := os.ReadFile(m.config)
	if err == nil { // short enough that requests are cut off
		err = os.WriteFile(m.config, append(text, "stop_timeout: 200ms\n"...), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := m.desk(t, "--allow", "api.test:"+m.port, "--allow", "127.0.0.1:"+m.port, "--model", "house")
	end(t, m.part(t, "daemon"), unix.SIGTERM)
	if err := m.up(); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, bytes.Repeat([]byte("carrel\n"), 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	defer close(hold)
	m.hold.Store(&hold)
	flags := m.flags()
	inOrder := func(s unix.Signal) func() { return func() { end(t, m.part(t, "daemon"), s) } }
	for _, way := range []struct {
		name  string
		end   func()
		loops bool // clients go on asking
		order bool
	}{
		{"TERM", inOrder(unix.SIGTERM), true, true},
		{"INT", inOrder(unix.SIGINT), true, true},
		{"KILL", func() { kill(t, m.part(t, "daemon")) }, true, false},
		{"TERM of both, for a newer build", func() {
			inOrder(unix.SIGTERM)()
			end(t, m.part(t, "broker"), unix.SIGTERM)
		}, true, true},
		{"down", func() { m.carrel(t, append([]string{"down"}, flags...)...) }, false, true},
		{"TERM again", inOrder(unix.SIGTERM), true, true},
	} {
		asked := m.asked.Load()
		load, stop := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		ask := func(loop bool, args ...string) {
			clients.Go(func() {
				for again := true; again; again = loop && load.Err() == nil {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					_ = m.command(ctx, nil, args...).Run() // it fails when the daemon ends
					cancel()
				}
			})
		}
		shell := m.shell(t, 24, 80, d.Key)
		shell.Expect("$ ")
		ask(false, "exec", "-d", d.Key, "--", "/bin/sh", "-c", "curl -skS https://api.test:"+m.port+"/ > answer")
		ask(false, "exec", "-d", d.Key, "--", "/bin/sh", "-c", modelRequest)
		ask(false, "task", "run", "-d", "-p", "wait", d.Key, "--", "/bin/sh", "-c", "read -r line; sleep 60")
		ask(false, "exec", d.Key, "--", "sleep", "60")
		until(t, way.name+": a connection and a request to a model", func() bool { return m.asked.Load() >= asked+2 })
		ask(way.loops, "exec", d.Key, "--", "true")
		ask(way.loops, "cp", big, d.Key+":big")
		time.Sleep(mrand.N(200 * time.Millisecond)) //nolint:forbidigo // any moment will do
		if !way.loops {
			stop()
		}
		way.end()
		stop()
		clients.Wait()
		shell.End()
		if way.order {
			if last := m.lastRecord(t); !strings.Contains(last.raw, `"event":"daemon.stopped"`) {
				t.Errorf("%s: the last record is %s", way.name, last.raw)
			}
			m.verified(t)
		}
		if err := m.up(); err != nil {
			t.Fatalf("%s: %v", way.name, err)
		}
		m.carrel(t, "audit", "verify")
		if out := d.sh(t, "echo well"); out != "well" {
			t.Errorf("%s: %q", way.name, out)
		}
		// What was begun before has its end, by the daemon that ended or by this one.
		m.carrel(t, "stop", d.Key)
		m.carrel(t, "start", d.Key)
		m.settled(t)
	}
	if n := strings.Count(fmt.Sprint(m.since(t, 0)), `"late"`); n != 0 {
		t.Errorf("%d records were taken over", n)
	}
}
