package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

const (
	// openWorkspaces hold openEach connections each.
	openWorkspaces, openEach = 200, 10
	// openTime is how long they may take to be open.
	openTime = time.Minute
)

// holder opens connections and holds them: NAME PORT NUMBER, and "tls" for TLS.
const holder = `
import os, socket, ssl, sys, time
name, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
held = []
for _ in range(number):
    s = socket.create_connection((name, port), timeout=60)
    if "tls" in sys.argv:
        s = ssl.create_default_context().wrap_socket(s, server_hostname=name)
    key = os.environ.get("BENCH_KEY", "none")
    s.sendall(f"GET / HTTP/1.1\r\nHost: {name}:{port}\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    assert s.recv(4096).startswith(b"HTTP/1.1 200")
    held.append(s)
time.sleep(3600)
`

// egressDaemon measures workspaces of the daemon: how much later one with rules starts, and what open connections take.
func (b *bench) egressDaemon() error {
	w, err := b.newWeb() // whose connections nobody else has open
	if err != nil {
		return err
	}
	file, trust := filepath.Join(b.dir, "rules.yaml"), filepath.Join(b.dir, "authorities.pem")
	if err := errors.Join(
		os.WriteFile(file, fmt.Appendf(nil, "resolver: %s\n", w.names), 0o644), os.WriteFile(trust, w.authority, 0o644),
	); err != nil {
		return err
	}
	h, err := b.newHostWith("egress", fmt.Sprintf("egress:\n  file: %s\n", file), "SSL_CERT_FILE="+trust)
	if err != nil {
		return err
	}
	if _, err := h.client.Secrets().SetSecret(b.ctx, connect.NewRequest(&carrelv1.SetSecretRequest{
		Name: keyEnv, Value: "the-key-of-the-bench", Hosts: []string{hostName + ":" + w.tls},
	})); err != nil {
		return err
	}
	rules := func(port string) []string { return []string{hostName + ":" + port, "127.0.0.1:" + port} }
	var starts []measure.Contestant
	for _, x := range []struct {
		name string
		r    *carrelv1.CreateRequest
	}{
		{"start of a workspace with rules (API)", &carrelv1.CreateRequest{ReachAllow: rules(w.plain)}},
		{report.NoRules, &carrelv1.CreateRequest{}},
		{"the same with a secret", &carrelv1.CreateRequest{ReachAllow: rules(w.tls), Secrets: []string{keyEnv}}},
	} {
		x.r.Key, x.r.IdleTimeoutMs = x.name, forever
		if _, err := h.make(b.ctx, x.r); err != nil {
			return err
		}
		starts = append(starts, measure.Contestant{Name: x.name, Op: func() (time.Duration, error) {
			if err := h.stopWorkspace(x.r.Key); err != nil {
				return 0, err
			}
			began := time.Now()
			_, err := h.client.Workspaces().Start(b.ctx, connect.NewRequest(&carrelv1.StartRequest{Workspace: x.r.Key}))
			return time.Since(began), err
		}})
	}
	got := measure.Interleave(b.ctx, b.pace(3*slowest), starts)
	if err := b.times(report.EgressStartAPI, time.Millisecond, got[0], got[1:]); err != nil {
		return err
	}
	return errors.Join(
		h.held(w, report.EgressOpen, "an open connection, plain", w.plain, &carrelv1.CreateRequest{ReachAllow: rules(w.plain)}),
		h.held(w, report.EgressTLSOpen, "an open connection, intercepted", w.tls,
			&carrelv1.CreateRequest{ReachAllow: rules(w.tls), Secrets: []string{keyEnv}}),
	)
}

// held measures what connections of many workspaces take in their carrel-egress.
func (h *carrelHost) held(w *web, id, name, port string, like *carrelv1.CreateRequest) error {
	b, many := h.b, openWorkspaces
	if b.quick {
		many /= 10
	}
	var keys []string
	for i := range many {
		keys = append(keys, fmt.Sprintf("%s %d", id, i))
	}
	before := h.egresses()
	if err := each(workers, keys, func(key string) error {
		_, err := h.make(b.ctx, &carrelv1.CreateRequest{Key: key, IdleTimeoutMs: forever, ReachAllow: like.ReachAllow, Secrets: like.Secrets})
		return err
	}); err != nil {
		return err
	}
	if err := b.settle(); err != nil {
		return err
	}
	pids := h.egresses()
	for pid := range before {
		delete(pids, pid)
	}
	if len(pids) != many {
		return fmt.Errorf("%d workspaces have %d carrel-egress", many, len(pids))
	}
	idle, err := allPSS(pids)
	if err != nil {
		return err
	}
	were := w.accepted.Load() // what is intercepted lets the host's side go when it has been idle for a while
	argv := []string{"/usr/bin/python3", "-c", holder, hostName, port, strconv.Itoa(openEach)}
	if len(like.Secrets) > 0 {
		argv = append(argv, "tls")
	}
	if err := each(workers, keys, func(key string) error {
		_, err := h.client.Commands().Detach(b.ctx, connect.NewRequest(&carrelv1.DetachRequest{
			Workspace: key, Command: &carrelv1.Command{Argv: argv},
		}))
		return err
	}); err != nil {
		return err
	}
	wanted := int64(many * openEach)
	for until := time.Now().Add(openTime); w.accepted.Load()-were < wanted; {
		if time.Now().After(until) {
			return fmt.Errorf("only %d of %d connections are open after %v", w.accepted.Load()-were, wanted, openTime)
		}
		if err := b.settle(); err != nil {
			return err
		}
	}
	if err := b.settle(); err != nil {
		return err
	}
	busy, err := allPSS(pids)
	if err != nil {
		return err
	}
	b.Add(report.Row{ID: id, Unit: "KiB", Ours: report.Stat{
		Name: fmt.Sprintf("%s, of %d in %d workspaces", name, wanted, many), N: 1, P50: (busy - idle) * 1024 / float64(wanted),
	}})
	return each(workers, keys, func(key string) error {
		_, err := h.client.Workspaces().Destroy(b.ctx, connect.NewRequest(&carrelv1.DestroyRequest{Workspace: key, Purge: true}))
		return err
	})
}

// egresses are the carrel-egress of all workspaces.
func (h *carrelHost) egresses() map[int]bool {
	pids := map[int]bool{}
	for _, pid := range descendants(h.brokerPID) {
		if isNamed(pid, "carrel-egress") {
			pids[pid] = true
		}
	}
	return pids
}

// allPSS is the proportional set size of processes together, in MiB.
func allPSS(pids map[int]bool) (all float64, err error) {
	for pid := range pids {
		v, err := pss(pid)
		if err != nil {
			return 0, err
		}
		all += v
	}
	return all, nil
}

func isNamed(pid int, name string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.TrimSpace(string(b)) == name
}

// descendants are the processes below one, by what each says of its parent (proc_pid_stat(5)).
func descendants(of int) (below []int) {
	kids := map[int][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name before it may have spaces and brackets.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			kids[parent] = append(kids[parent], pid)
		}
	}
	for next := kids[of]; len(next) > 0; {
		below = append(below, next...)
		var more []int
		for _, pid := range next {
			more = append(more, kids[pid]...)
		}
		next = more
	}
	return below
}
