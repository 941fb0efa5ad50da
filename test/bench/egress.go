package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
	"github.com/carrel-dev/carrel/test/nameserver"
)

// hostName is what clients ask for.
const hostName = "server.test"

// web is a server on loopback, with and without TLS, and the name server that knows it.
type web struct {
	plain, tls string // ports
	names      string // where the name server answers
	authority  []byte // PEM, vouches for the server
	accepted   atomic.Int64
}

func (b *bench) newWeb() (*web, error) {
	w := &web{}
	authority, err := ca.Make("bench", 24*time.Hour)
	if err != nil {
		return nil, err
	}
	leaves := authority.Leaves(func(netrule.Host) bool { return true })
	w.authority = authority.PEM()
	zeros := make([]byte, 1<<20)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(zeros[:100]) })
	mux.HandleFunc("/bulk", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(bulkBytes))
		for range bulkBytes / len(zeros) {
			_, _ = w.Write(zeros)
		}
	})
	s := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, TLSConfig: serving(leaves), Protocols: new(http.Protocols),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				w.accepted.Add(1)
			}
		},
	}
	s.Protocols.SetHTTP1(true)
	b.later(func(context.Context) error { return s.Close() })
	for _, x := range []struct {
		port  *string
		serve func(net.Listener) error
	}{{&w.plain, s.Serve}, {&w.tls, func(l net.Listener) error { return s.ServeTLS(l, "", "") }}} {
		l, err := (&net.ListenConfig{}).Listen(b.ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		if _, *x.port, err = net.SplitHostPort(l.Addr().String()); err != nil {
			return nil, err
		}
		go func() { _ = x.serve(l) }()
	}
	var stop func()
	w.names, stop, err = nameserver.Start(b.ctx, nameserver.Zone{hostName: "127.0.0.1"})
	if err != nil {
		return nil, err
	}
	b.later(func(context.Context) error {
		stop()
		return nil
	})
	return w, nil
}

// egress measures what runs in a workspace and reaches a host through carrel-egress, beside the same client that
// reaches it directly, and through proxies that are there; and what a way out adds to a start.
func (b *bench) egress() error {
	w, err := b.newWeb()
	if err != nil {
		return err
	}
	p, err := b.person()
	if err != nil {
		return err
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	program := filepath.Join(b.bin, "bench-client")
	if err := os.WriteFile(program, self, 0o755); err != nil {
		return err
	}
	settings := "umask 022; mkdir -p .config/carrel; echo 'resolver: " + w.names + "' > .config/carrel/egress.yaml; cat > authorities.pem"
	if err := p.script(settings, w.authority); err != nil {
		return fmt.Errorf("cannot write the rules: %w", err)
	}
	return errors.Join(b.egressPlain(p, w, program), b.egressTLS(p, w, program), b.egressJudge(), b.egressDaemon())
}

// egressPlain measures what is not intercepted.
func (b *bench) egressPlain(p person, w *web, program string) error {
	carrel := filepath.Join(b.bin, "carrel")
	allow := []string{"--allow", hostName + ":" + w.plain, "--allow", "127.0.0.1:" + w.plain}
	named, server := urlEnv+"=http://"+hostName+":"+w.plain, urlEnv+"=http://127.0.0.1:"+w.plain
	argv := append([]string{carrel, "run", "-i", "-v", b.bin + ":/mnt/bench:ro", "--env", named}, allow...)
	ours, err := b.client("through carrel-egress", p.command("", append(argv, "--", "/mnt/bench/bench-client", clientArg)...))
	if err != nil {
		return err
	}
	direct, err := b.client(report.Direct, p.command("", program, clientArg), named, resolverEnv+"="+w.names)
	if err != nil {
		return err
	}
	byAddress, err := b.client(report.ByAddress, p.command("", program, clientArg), server)
	if err != nil {
		return err
	}
	clients := append([]*webClient{ours, direct, byAddress}, b.proxies(p, w, program)...)
	if err := b.asked(clients, report.EgressNew, report.EgressKept, report.EgressBulk); err != nil {
		return err
	}
	var idle []int
	for _, pid := range descendants(ours.cmd.Process.Pid) {
		if isNamed(pid, "carrel-egress") {
			idle = append(idle, pid)
		}
	}
	if err := b.settle(); err != nil {
		return err
	}
	if err := b.pss(report.EgressIdle, "carrel-egress of a run, idle", idle...); err != nil {
		return err
	}
	starts := measure.Interleave(b.ctx, b.pace(slowest), []measure.Contestant{
		p.program("carrel run --allow", "", append(append([]string{carrel, "run"}, allow...), "--", command)...),
		p.program(report.RunAlone, "", carrel, "run", "--", command),
	})
	return b.times(report.EgressStart, time.Millisecond, starts[0], starts[1:])
}

// egressTLS measures what is intercepted for a secret.
func (b *bench) egressTLS(p person, w *web, program string) error {
	key, trust := keyEnv+"=the-key-of-the-bench", "SSL_CERT_FILE="+filepath.Join(p.home, "authorities.pem")
	at := hostName + ":" + w.tls
	named := urlEnv + "=https://" + at
	inside := p.command("", filepath.Join(b.bin, "carrel"), "run", "-i", "-v", b.bin+":/mnt/bench:ro", "--env", named,
		"--allow", at, "--allow", "127.0.0.1:"+w.tls, "--secret", keyEnv+"@"+at, "--", "/mnt/bench/bench-client", clientArg)
	ours, err := b.client("intercepted", inside, key, trust)
	if err != nil {
		return err
	}
	direct, err := b.client(report.Direct, p.command("", program, clientArg), named, resolverEnv+"="+w.names, key, trust)
	if err != nil {
		return err
	}
	clients := []*webClient{ours, direct}
	if mitm, err := b.mitmproxy(p, w, program); err != nil {
		b.Miss(report.Mitmproxy, err)
	} else {
		clients = append(clients, mitm)
	}
	return b.asked(clients, report.EgressTLSNew, report.EgressTLSKept, report.EgressTLSBulk)
}

// asked measures new connections, kept ones and a stream of the first client beside the others.
func (b *bench) asked(clients []*webClient, fresh, kept, stream string) error {
	all := func(line string) (list []measure.Contestant) {
		for _, c := range clients {
			list = append(list, c.contestant(line))
		}
		return list
	}
	for _, f := range []struct{ id, line string }{{fresh, lineNew}, {kept, lineKept}} {
		got := measure.Interleave(b.ctx, b.pace(5*time.Millisecond), all(f.line))
		got[0].Name += map[string]string{lineNew: ", a new connection", lineKept: ", a kept one"}[f.line]
		if err := b.times(f.id, time.Microsecond, got[0], got[1:]); err != nil {
			return err
		}
	}
	bulk := measure.Interleave(b.ctx, measure.Pace{Rounds: 7, Warm: 1}, all(lineBulk))
	for i := range bulk {
		for _, r := range bulk[i].Rounds {
			bulk[i].Rates = append(bulk[i].Rates, float64(bulkBytes)/1e9/r[0].Seconds())
		}
	}
	bulk[0].Name += ", one stream"
	return b.rates(stream, "GB/s", bulk[0], bulk[1:])
}

// manyRules are how many rules a connection is judged by.
const manyRules = 10_000

// egressJudge measures how long a connection is judged by many rules.
func (b *bench) egressJudge() error {
	var list []netrule.Rule
	for i := range manyRules {
		text := fmt.Sprintf("host%d.example.org", i)
		if i%2 == 1 {
			text = "*.below" + text
		}
		rule, err := netrule.ParseRule(netrule.Allow, text)
		if err != nil {
			return err
		}
		list = append(list, rule)
	}
	rules, err := netrule.New(list, netrule.Options{})
	if err != nil {
		return err
	}
	i := 0
	const each = 100 // a clock is read once for so many
	got := measure.Interleave(b.ctx, b.pace(0), []measure.Contestant{{
		Name: fmt.Sprintf("a target judged by %d rules", manyRules), Op: func() (time.Duration, error) {
			began := time.Now()
			for range each {
				i = (i + 7) % manyRules
				t, err := netrule.ParseTarget(fmt.Sprintf("a.belowhost%d.example.org:443", i))
				if err != nil {
					return 0, err
				}
				if allowed := rules.Judge(t).Action == netrule.Allow; allowed != (i%2 == 1) {
					return 0, fmt.Errorf("%s is judged wrongly", t)
				}
			}
			return time.Since(began) / each, nil
		},
	}})
	return b.times(report.EgressJudge, time.Microsecond, got[0], nil)
}
