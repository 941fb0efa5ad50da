package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

// With -beside, root's own operations on the Unix socket are measured on the idle host and beside one
// burden, one burden after the other. A burden is an ordinary user, or a stranger on the TLS port.

const (
	// burdenUID is the ordinary user, and burdenKey their workspace.
	burdenUID, burdenKey = firstUID + honestOwners + hostileOwners, "burden"
	// waitingQuestions is how many of their questions wait for an answer, of the 1,000 that may.
	waitingQuestions = 900
	// mostBeside is how much longer an operation may take beside a burden, at its 99th percentile.
	mostBeside = 3
	// besideRounds is how often the idle host and the burden take turns.
	besideRounds = 5
	// burdenTime bounds a burden.
	burdenTime = 10 * time.Second
)

// burden is something that is done again and again, by so many at once.
type burden struct {
	name string
	far  bool // by a stranger over TLS
	// prepare is for before the measurement; optional.
	prepare func(context.Context, *host) error
	parts   []part
}

type part struct {
	atOnce int
	round  func(context.Context, *raid) error
}

var burdens = slices.Concat([]burden{
	{name: "questions watched and listed", prepare: askMany, parts: []part{{95, watchApprovals}, {4, listApprovals}}},
	{name: "questions watched", prepare: askMany, parts: []part{{95, watchApprovals}}},
	{name: "questions listed", prepare: askMany, parts: []part{{4, listApprovals}}},
	{name: "questions asked and denied", prepare: askMany, parts: []part{{20, watchApprovals}, {4, askAndDeny}}},
	// What the process of a burden takes of the host, and nothing of carrel.
	{name: "a busy process (not strangers, not questions)", far: true, parts: []part{{1, busy}}},
	{name: "tokens made and revoked", parts: []part{{8, makeAndRevoke}}},
}, strangerBurdens)

// watchApprovals watches for as long as a flood holds its streams.
func watchApprovals(ctx context.Context, r *raid) error {
	ctx, cancel := context.WithTimeout(ctx, held)
	defer cancel()
	if err := r.watchApprovals(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

// busy does as much as a process of its priority may, without carrel.
func busy(ctx context.Context, _ *raid) error {
	for n := 0; n < 1<<20 && ctx.Err() == nil; n++ {
	}
	return nil
}

func listApprovals(ctx context.Context, r *raid) error {
	_, err := r.t.approvals.ListApprovals(ctx, connect.NewRequest(&carrelv1.ListApprovalsRequest{PageSize: 500}))
	return err
}

func askAndDeny(ctx context.Context, r *raid) error {
	if err := question(ctx, r); err != nil {
		return err
	}
	list, err := r.t.approvals.ListApprovals(ctx, connect.NewRequest(&carrelv1.ListApprovalsRequest{PageSize: 1, State: "pending"}))
	if err != nil || len(list.Msg.GetApprovals()) == 0 {
		return err
	}
	deny := &carrelv1.AnswerApprovalRequest{Id: list.Msg.GetApprovals()[0].GetId(), Kind: "deny"}
	if _, err = r.t.approvals.AnswerApproval(ctx, connect.NewRequest(deny)); connect.CodeOf(err) == connect.CodeFailedPrecondition {
		return nil // another of them was quicker
	}
	return err
}

func makeAndRevoke(ctx context.Context, r *raid) error {
	res, err := r.t.tokens.CreateToken(ctx, connect.NewRequest(&carrelv1.CreateTokenRequest{Name: "burden", Roles: []string{"operator"}}))
	if err == nil {
		_, err = r.t.tokens.RevokeToken(ctx, connect.NewRequest(&carrelv1.RevokeTokenRequest{Id: res.Msg.GetToken().GetId()}))
	}
	return err
}

// askMany has as many questions of the ordinary user wait as are to.
func askMany(ctx context.Context, h *host) error {
	t := h.as(burdenUID)
	list, err := t.approvals.ListApprovals(ctx, connect.NewRequest(&carrelv1.ListApprovalsRequest{PageSize: 1, State: "pending"}))
	if err != nil || len(list.Msg.GetApprovals()) > 0 {
		return err
	}
	var group sync.WaitGroup
	errs := make(chan error, 8)
	for k := range cap(errs) {
		group.Go(func() {
			r := &raid{attacker: attacker{Keys: []string{burdenKey}}, t: t}
			for i := k; i < waitingQuestions; i += cap(errs) {
				if err := question(ctx, r); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(errs)
	return <-errs
}

// bear is the whole life of a process that is a burden.
func (r *raid) bear(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*burdenTime)
	defer cancel()
	var group sync.WaitGroup
	for _, b := range burdens {
		if b.name != r.Burden {
			continue
		}
		for _, p := range b.parts {
			for range p.atOnce {
				group.Go(func() { r.flood(ctx, flood{b.name, p.round}) })
			}
		}
	}
	group.Wait()
}

// besides is what -beside found.
type besides struct {
	Began time.Time         `json:"began"`
	Rows  []besideRow       `json:"operations"`
	Ways  map[string]*tally `json:"ways"`
	Left  []string          `json:"left"`
}

type besideRow struct {
	Burden    string `json:"burden"`
	Operation string `json:"operation"`
	Idle      times  `json:"idle"`
	Beside    times  `json:"beside"`
	// DaemonIdle and DaemonBeside are what the daemon took of one processor meanwhile.
	DaemonIdle   float64 `json:"daemon_idle"`
	DaemonBeside float64 `json:"daemon_beside"`
}

var besideOperations = []string{"exec", "create", "destroy", "list", "approvals"}

// measureBesides measures beside each burden whose name has one of the words.
func (h *host) measureBesides(ctx context.Context, o options, rep *besides) error {
	root := h.as(0)
	for who, t := range map[string]*tenant{"root's": root, burdenKey: h.as(burdenUID)} {
		if _, err := t.workspaces.Create(ctx, connect.NewRequest(&carrelv1.CreateRequest{Key: who, IdleTimeoutMs: forever})); err != nil {
			return err
		}
	}
	for _, b := range burdens {
		if !slices.ContainsFunc(o.beside, func(word string) bool { return strings.Contains(b.name, word) }) {
			continue
		}
		if b.prepare != nil {
			h.say("preparing: %s", b.name)
			if err := b.prepare(ctx, h); err != nil {
				return fmt.Errorf("cannot prepare %s: %w", b.name, err)
			}
		}
		h.say("measuring on the idle host and beside %s, %v each", b.name, o.life)
		idle, beside := newLedger(ctx, h), newLedger(ctx, h)
		var before, meanwhile float64
		for range besideRounds { // one after the other, so that what else the host does is alike
			uses, err := h.daemonUses(func() { idle.own(ctx, o.life/besideRounds, root, b.far) })
			if err != nil {
				return err
			}
			before += uses / besideRounds
			a := attacker{Socket: h.socket(), UID: burdenUID, Burden: b.name, Keys: []string{burdenKey}, Address: h.address}
			g, err := h.attackers([]attacker{a})
			if err != nil {
				return err
			}
			pause(ctx, held/4) // until it is at work
			uses, err = h.daemonUses(func() { beside.own(ctx, o.life/besideRounds, root, b.far) })
			for name, t := range g.end() {
				if rep.Ways[name] == nil {
					rep.Ways[name] = new(tally)
				}
				rep.Ways[name].add(*t)
			}
			if err != nil {
				return err
			}
			meanwhile += uses / besideRounds
		}
		for _, op := range besideOperations {
			if row := (besideRow{b.name, op, idle.of(op), beside.of(op), before, meanwhile}); row.Idle.N > 0 {
				rep.Rows = append(rep.Rows, row)
			}
		}
		for _, text := range append(idle.texts(), beside.texts()...) {
			h.say("%s", text)
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	return nil
}

// daemonUses is what the daemon takes of one processor while f runs.
func (h *host) daemonUses(f func()) (float64, error) {
	began := time.Now()
	before, err := h.daemonTime()
	if err != nil {
		return 0, err
	}
	f()
	after, err := h.daemonTime()
	return (after - before).Seconds() / time.Since(began).Seconds(), err
}

// daemonTime is the processor time that the daemon has had.
func (h *host) daemonTime() (time.Duration, error) {
	const tick = time.Second / 100 // USER_HZ, of proc(5)
	user, err := field(fmt.Sprintf("/proc/%d/stat", h.daemon.Load()), "", 13)
	if err != nil {
		return 0, err
	}
	system, err := field(fmt.Sprintf("/proc/%d/stat", h.daemon.Load()), "", 14)
	return time.Duration(user+system) * tick, err
}

// own is what root does: commands, and beside those, unless only commands are measured, workspaces and lists.
func (l *ledger) own(ctx context.Context, life time.Duration, root *tenant, commands bool) {
	ctx, cancel := context.WithTimeout(ctx, life)
	defer cancel()
	var group sync.WaitGroup
	loop := func(f func()) {
		group.Go(func() {
			for ctx.Err() == nil {
				f()
			}
		})
	}
	loop(func() {
		l.do(ctx, "exec", func(ctx context.Context) error {
			_, err := root.exec(ctx, "root's", nil, "/bin/true")
			return err
		})
	})
	if !commands {
		loop(func() {
			key := "made " + rand.Text()
			if l.do(ctx, "create", func(ctx context.Context) error {
				_, err := root.workspaces.Create(ctx, connect.NewRequest(&carrelv1.CreateRequest{Key: key}))
				return err
			}) {
				l.do(l.base, "destroy", func(ctx context.Context) error { return root.destroy(ctx, key, "") })
			}
		})
		loop(func() {
			l.do(ctx, "list", func(ctx context.Context) error {
				_, err := root.workspaces.List(ctx, connect.NewRequest(&carrelv1.ListRequest{}))
				return err
			})
			l.do(ctx, "approvals", func(ctx context.Context) error {
				_, err := root.approvals.ListApprovals(ctx, connect.NewRequest(&carrelv1.ListApprovalsRequest{PageSize: 100, State: "pending"}))
				return err
			})
		})
	}
	group.Wait()
}

func (r *besides) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "beside\toperation, ms\tidle: p50\tp99\tmax\tn\tbeside: p50\tp99\tmax\tn\t",
		"ratio p50\tratio p99\tdaemon: idle\tbeside\trefused\tfailed\n")
	for _, row := range r.Rows {
		a, b := row.Idle, row.Beside
		missed := ""
		if b.P99 > mostBeside*a.P99 {
			missed = " MISSED"
		}
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%.1f\t%.1f\t%d\t%.1f\t%.1f\t%.1f\t%d\t%.2f\t%.2f%s\t%.2f\t%.2f\t%d\t%d\n", row.Burden, row.Operation,
			a.P50, a.P99, a.Max, a.N, b.P50, b.P99, b.Max, b.N, b.P50/max(a.P50, 0.001), b.P99/max(a.P99, 0.001), missed,
			row.DaemonIdle, row.DaemonBeside, a.Refused+b.Refused, a.Failed+b.Failed)
	}
	printWays(w, r.Ways)
	fmt.Fprintf(w, "LEFT: %d\n", len(r.Left))
	for _, line := range r.Left {
		fmt.Fprintf(w, "  %s\n", line)
	}
	return w.Flush()
}

func (r *besides) ok() bool {
	return len(r.Left) == 0 && !slices.ContainsFunc(r.Rows, func(row besideRow) bool { return row.Idle.Failed+row.Beside.Failed > 0 })
}

// measureBeside brings a carrel up and measures beside burdens.
func measureBeside(ctx context.Context, o options, out, progress io.Writer) (bool, error) {
	h, err := newHost(ctx, o, progress)
	if err != nil {
		return false, err
	}
	rep := &besides{Began: time.Now().UTC(), Ways: map[string]*tally{}}
	err = h.measureBesides(ctx, o, rep)
	left, downErr := h.down()
	rep.Left = left
	write := rep.table
	if o.format == "json" {
		write = func(out io.Writer) error { return writeJSON(out, rep) }
	}
	return rep.ok(), errors.Join(err, downErr, write(out))
}
