package crash_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// scenario is an operation, and the points that it passes.
type scenario struct {
	name string
	// prepare brings the workspace to where the operation can be asked for.
	prepare func(t *testing.T, h *host, key string)
	// operation is what a client asks for, and asks for again after the crash.
	operation func(key string) []string
	// after are points that are armed too, because the crash at one of them leads to
	// those of the scenario.
	after []string
	// disk: the host has to hold limits on disk space.
	disk bool
	// said: the second time, this answer counts as success too.
	said string
	// then looks at what has become of it when it was asked for again.
	then func(t *testing.T, h *host, key string)
	// points are passed by the operation, or by the recovery that follows; a number
	// after "#" is which passing is meant.
	points []string
}

// exercised lists every point that a scenario arms.
func exercised() []string {
	var all []string
	for _, s := range scenarios {
		for _, p := range s.points {
			name, _, _ := strings.Cut(p, "#")
			all = append(all, name)
		}
	}
	for _, s := range hostScenarios {
		for _, p := range s.points {
			name, _, _ := strings.Cut(p, "#")
			all = append(all, name)
		}
	}
	all = append(all, tokenPoints...)
	all = append(all, secretPoints...)
	all = append(all, keyPoints...)
	all = append(all, modelPoints...)
	all = append(all, approvalPoints...)
	all = append(all, rotationPoints...)
	all = append(all, endPoints...)
	all = append(all, removalPoints...)
	all = append(all, turnPoints...)
	slices.Sort(all)
	return slices.Compact(all)
}

func verb(args ...string) func(string) []string {
	return func(key string) []string { return append(slices.Clone(args), key) }
}

// once is a command that leaves a trace of each of its runs.
func once(flags ...string) func(string) []string {
	return func(key string) []string {
		return append(append([]string{"exec"}, flags...), key, "--", "/bin/sh", "-c", "echo "+rand.Text()+" >> tokens")
	}
}

func withRequest(args ...string) func(string) []string {
	return func(key string) []string {
		return append(append(slices.Clone(args), "--request-id", "r-"+strings.ReplaceAll(key, " ", "-")), key)
	}
}

var scenarios = []scenario{
	{
		name: "create", operation: verb("create"),
		points: []string{
			"daemon.intent.written", "daemon.create.inserted", "daemon.create.made", "daemon.effect.done", "daemon.outcome.written",
			"broker.create.allocated", "broker.create.user-added", "broker.create.dir-made#1", "broker.create.dir-made#2",
			"broker.create.dir-made#4", "broker.create.dirs-made",
			"broker.ledger.written#1", "broker.ledger.synced#1", "broker.ledger.written#2", "broker.ledger.synced#2",
			"broker.start.groups-made", "broker.socket.made", "broker.start.socket-bound", "broker.start.cloned", "broker.start.proved",
			"broker.report.written", "broker.create.started",
			"executor.stage.step#1", "executor.stage.step#4", "executor.stage.step#12", "executor.stage.step#20", "executor.stage.proved",
			"executor.start.entered",
		},
	},
	{
		name: "create with a request id", operation: withRequest("create"),
		points: []string{"daemon.request.begun", "daemon.request.done", "daemon.create.made"},
	},
	{
		name: "undo", operation: verb("create"), after: []string{"broker.create.dir-made"},
		points: []string{"broker.undo.user-removed", "broker.undo.dirs-removed"},
	},
	{
		name: "start", prepare: stopped, operation: verb("start"),
		points: []string{
			"daemon.intent.written", "broker.start.launched", "broker.ledger.written", "broker.ledger.synced", "broker.start.kept",
			"daemon.start.trusted", "daemon.start.started",
		},
	},
	{
		name: "start with a way out", prepare: stoppedReaching, operation: verb("start"),
		points: []string{"broker.egress.started", "broker.start.proved", "broker.start.kept", "daemon.start.started", "daemon.effect.done"},
	},
	{
		name: "create with a way out", operation: verb("create", "--allow", "a.example"),
		points: []string{"broker.egress.started", "broker.create.started", "daemon.create.made"},
	},
	{
		name: "network rules", prepare: reaching, operation: func(key string) []string { return []string{"egress", "deny", key, "b.example"} },
		points: []string{"daemon.intent.written", "daemon.effect.done", "daemon.outcome.written"},
	},
	{
		name: "stop with a way out", prepare: reaching, operation: verb("stop"),
		points: []string{"daemon.intent.written", "broker.clean.groups-removed", "broker.stop.cleaned", "daemon.stop.stopped"},
	},
	{
		name: "exec", prepare: created, operation: once(),
		points: []string{
			"daemon.intent.written", "daemon.effect.done", "daemon.outcome.written",
			"executor.exec.cloned", "executor.exec.started", "executor.exec.reaped", "executor.exec.final",
		},
	},
	{
		name: "exec detached", prepare: created, operation: once("--detach"),
		points: []string{"daemon.effect.done", "executor.exec.cloned", "executor.exec.started", "executor.exec.settling", "executor.exec.final"},
	},
	{
		name: "task", prepare: created, operation: task,
		points: []string{
			"daemon.intent.written", "daemon.task.spawned", "daemon.task.kept", "daemon.task.ended", "daemon.effect.done",
			"daemon.outcome.written",
		},
		then: tasksEnded,
	},
	{
		name: "stop", prepare: busy, operation: verb("stop"),
		points: []string{
			"daemon.intent.written", "daemon.stop.stopped", "daemon.effect.done",
			"broker.stop.killed", "broker.clean.groups-removed", "broker.clean.socket-removed", "broker.stop.cleaned", "broker.ledger.written",
			"executor.shutdown.begun", "executor.shutdown.ended",
		},
	},
	{
		name: "sign the record", prepare: created, operation: func(string) []string { return []string{"audit", "checkpoint"} },
		points: []string{
			"daemon.checkpoint.signed", "broker.file.written", "broker.countersign.kept", "daemon.checkpoint.countersigned",
			"daemon.checkpoint.written", "daemon.checkpoint.kept",
		},
	},
	{
		name: "pause", prepare: created, operation: verb("pause"),
		points: []string{"daemon.turn.done", "broker.freeze.done", "broker.ledger.synced"},
	},
	{
		name: "resume", prepare: paused, operation: verb("resume"),
		points: []string{"daemon.turn.done", "broker.freeze.done", "broker.ledger.synced"},
	},
	{
		name: "update", prepare: created, operation: verb("update", "--memory", "300MiB", "--pids", "99"),
		points: []string{"daemon.update.limited", "daemon.effect.done", "broker.update.kept", "broker.update.applied", "broker.report.replaced"},
	},
	{
		name: "update while stopped", prepare: stopped, operation: verb("update", "--pids", "99"),
		points: []string{"broker.update.kept", "daemon.update.limited"},
	},
	{
		name: "update while paused", prepare: paused, operation: verb("update", "--pids", "99"),
		points: []string{"broker.update.kept", "broker.update.applied"},
	},
	{
		name: "destroy", prepare: busy, operation: verb("destroy"), said: "none with this key",
		points: []string{
			"daemon.intent.written", "daemon.destroy.begun", "daemon.destroy.done", "daemon.effect.done",
			"broker.destroy.begun", "broker.destroy.cleaned", "broker.destroy.processes-ended", "broker.destroy.user-removed",
			"broker.destroy.home-renamed", "broker.destroy.home-gone", "broker.destroy.tmp-removed", "broker.ledger.written#2",
			"broker.ledger.synced#3",
		},
	},
	{
		name: "destroy and purge", prepare: stopped, operation: verb("destroy", "--purge"), said: "none with this key",
		points: []string{"broker.destroy.user-removed", "broker.destroy.home-gone"},
	},
	{
		name: "destroy a deep home", prepare: deep, operation: verb("destroy", "--purge"), said: "none with this key",
		points: []string{"broker.removal.lifted#1", "broker.removal.lifted#4"},
	},
	{
		name: "destroy with a request id", prepare: created, operation: withRequest("destroy"),
		points: []string{"daemon.request.begun", "daemon.request.done", "daemon.destroy.done", "daemon.effect.done"},
	},
	{
		name: "revive", prepare: ended, operation: verb("revive"), said: "no home is kept", then: revived,
		points: []string{
			"daemon.intent.written", "daemon.revive.begun", "broker.revive.begun", "broker.revive.user-added", "broker.revive.home-renamed",
			"broker.revive.home-taken", "daemon.revive.done", "daemon.effect.done",
		},
	},
	{
		name: "revive with a disk limit", prepare: endedDisk, operation: verb("revive"), said: "no home is kept", then: revived, disk: true,
		points: []string{"broker.revive.image-taken", "broker.revive.home-renamed", "broker.revive.home-taken"},
	},
	{
		name: "archive", prepare: stopped, operation: verb("archive", "create"),
		points: []string{
			"daemon.archive.begun", "daemon.archive.packed", "daemon.archive.placed", "daemon.archive.noted", "daemon.effect.done",
			"broker.start.launched", "broker.stop.cleaned", "executor.exec.started", "executor.exec.final",
		},
	},
	{
		name: "archive and destroy", prepare: stopped, operation: withRequest("archive", "create", "--destroy"), then: restored,
		points: []string{
			"daemon.request.begun", "daemon.archive.packed", "daemon.archive.placed", "daemon.archive.verified", "daemon.archive.noted",
			"daemon.destroy.begun", "daemon.destroy.done", "daemon.request.done", "executor.exec.started#2", "executor.exec.final#2",
		},
	},
	{
		name: "archive with a request id", prepare: stopped, operation: withRequest("archive", "create"),
		points: []string{"daemon.request.begun", "daemon.archive.placed", "daemon.archive.noted", "daemon.request.done"},
	},
	{
		name: "update with a request id", prepare: created, operation: withRequest("update", "--pids", "99"),
		points: []string{"daemon.request.begun", "daemon.update.limited", "daemon.request.done"},
	},
	{
		name: "restore with a request id", prepare: putAway, operation: withRequest("restore"),
		points: []string{"daemon.request.begun", "daemon.create.inserted", "daemon.fill.done", "daemon.effect.done", "daemon.request.done"},
	},
	{
		name: "remove the archive of what was destroyed", prepare: putAway, operation: verb("archive", "rm"), said: "cannot find an archive",
		points: []string{"daemon.archive.forgotten"},
	},
	{
		name: "restore", prepare: putAway, operation: verb("restore"), said: "has it; destroy that one",
		points: []string{
			"daemon.create.inserted", "daemon.create.made", "daemon.fill.started", "daemon.fill.done", "daemon.effect.done",
			"broker.create.dirs-made", "broker.create.started",
		},
	},
	{
		name: "create with a disk limit", operation: verb("create", "--disk", "64MiB"), disk: true,
		points: []string{
			"broker.create.dirs-made", "broker.image.file-made", "broker.image.formatted", "broker.image.placed",
			"broker.image.attached", "broker.image.mounted", "broker.image.prepared", "broker.image.split", "broker.create.started",
		},
	},
	{
		name: "undo with a disk limit", operation: verb("create", "--disk", "64MiB"), after: []string{"broker.image.placed"}, disk: true,
		points: []string{"broker.image.free", "broker.image.removed"},
	},
	{
		name: "start with a disk limit", prepare: stoppedDisk, operation: verb("start"), disk: true,
		points: []string{"broker.image.attached", "broker.image.mounted", "broker.image.split", "broker.start.proved"},
	},
	{
		name: "start with a raised disk limit", prepare: smallDisk, operation: verb("start"), disk: true,
		points: []string{"broker.image.extended", "broker.image.mounted", "broker.image.grown"},
	},
	{
		name: "stop with a disk limit", prepare: busyDisk, operation: verb("stop"), disk: true,
		points: []string{"broker.stop.killed", "broker.clean.groups-removed", "broker.stop.cleaned"},
	},
	{
		name: "destroy with a disk limit", prepare: busyDisk, operation: verb("destroy"), said: "none with this key", disk: true,
		points: []string{
			"broker.destroy.user-removed", "broker.destroy.home-renamed", "broker.image.free", "broker.image.kept", "broker.destroy.tmp-removed",
		},
	},
	{
		name: "destroy and purge with a disk limit", prepare: busyDisk, operation: verb("destroy", "--purge"), said: "none with this key",
		disk:   true,
		points: []string{"broker.image.free", "broker.image.removed"},
	},
	{
		name: "recovery of the broker", prepare: busy, operation: verb("stop"), after: []string{"broker.stop.killed"},
		points: []string{
			"broker.up.host-opened", "broker.up.ledger-opened", "broker.up.recovered", "broker.up.socket-bound", "broker.clean.groups-removed",
			"broker.stop.cleaned",
		},
	},
	{
		name: "recovery of the daemon", prepare: busy, operation: verb("stop"), after: []string{"daemon.intent.written"},
		points: []string{
			"daemon.up.database-opened", "daemon.up.audit-opened", "daemon.recover.closed", "daemon.recover.reconciled", "daemon.up.socket-bound",
		},
	},
}

// beside is how many carrels share the scenarios: much of a crash is waiting for its end.
const beside = 3

// Killed at every point of every operation: carrel comes up again, and what was asked for
// can be asked for again.
func TestPoints(t *testing.T) {
	needRoot(t)
	t.Parallel()
	var hosts []*host
	for range beside {
		hosts = append(hosts, newHostUp(t))
	}
	next := make(chan scenario)
	var workers sync.WaitGroup
	for _, h := range hosts {
		workers.Go(func() {
			for s := range next {
				t.Run(s.name, func(t *testing.T) {
					if s.disk {
						needImages(t)
					}
					for _, p := range s.points {
						t.Run(p, func(t *testing.T) { s.crash(t, h, p) })
					}
				})
			}
		})
	}
	for _, s := range scenarios {
		next <- s
	}
	close(next)
	workers.Wait()
	for _, h := range hosts {
		h.gone(t)
	}
}

// crash tries a point until the broker comes there: a create that was killed when all of it was there is taken for done.
func (s *scenario) crash(t *testing.T, h *host, point string) {
	for range 20 {
		if s.attempt(t, h, point) {
			return
		}
	}
	t.Errorf("each create was done before the broker was killed: %s was not tried", point)
}

// attempt is false if nothing was killed at the point because a create was taken for done.
func (s *scenario) attempt(t *testing.T, h *host, point string) bool {
	key := "crk " + rand.Text()[:10]
	disarm := func() {
		all, err := filepath.Glob(h.points + "/*")
		must(t, err)
		for _, p := range all {
			must(t, os.Remove(p))
		}
	}
	defer func() {
		disarm()
		if t.Failed() {
			_ = h.tryUp() // nothing of this one may spoil the next
			_ = h.try("destroy", "--purge", key)
		}
	}()
	if s.prepare != nil {
		s.prepare(t, h, key)
	}
	name, count, _ := strings.Cut(point, "#")
	n := 1
	if count != "" {
		_, err := fmt.Sscan(count, &n)
		must(t, err)
	}
	mark := h.logEnd()
	for _, p := range append(slices.Clone(s.after), name) {
		h.arm(t, p, n)
	}
	if len(s.after) > 0 {
		h.arm(t, s.after[0], 1)
	}
	if strings.HasPrefix(name, "executor.") && s.prepare != nil {
		// It is told of the point when it starts.
		h.carrel(t, "stop", key)
		h.carrel(t, "start", key)
		if s.name == "stop" {
			h.carrel(t, "exec", "--detach", key, "--", "/bin/sh", "-c", "sleep 1000 & sleep 1000")
		}
	}
	first := h.try(s.operation(key)...)
	if strings.HasPrefix(name, "executor.") { // it may come there after the answer
		until(t, name, func() bool { return h.fired(name, mark) })
	}
	var up result
	for try := range 4 {
		if up = h.tryUp(); up.code == 0 && h.fired(name, mark) {
			break
		}
		if try == 0 && up.code != 0 && len(s.after) == 0 {
			t.Errorf("the first up fails: %v", up)
		}
	}
	if up.code != 0 {
		t.Fatalf("carrel does not come up: %v", up)
	}
	if !h.fired(name, mark) {
		log, err := os.ReadFile(h.data + "/log/broker.log")
		must(t, err)
		said := string(log[min(mark, int64(len(log))):])
		if len(s.after) > 0 && strings.Contains(said, "taking a create that was interrupted for done") {
			disarm() // it would be killed by this
			h.carrel(t, "destroy", "--purge", key)
			return false
		}
		t.Fatalf("nothing ended at %s; the operation said: %v\nthe broker's log:\n%s", point, first, said)
	}
	// Nothing half-made stands about, whether or not the client comes back. That database
	// and ledger agree can wait for the client where the daemon lived on.
	h.settled(t)
	h.look(t, check.Expect{Any: true}, check.Lost)
	again := h.try(s.operation(key)...)
	if again.code != 0 && (s.said == "" || !strings.Contains(again.err, s.said)) {
		t.Errorf("%q again: %v\nbefore it said: %v", s.operation("KEY"), again, first)
	}
	if s.then != nil {
		s.then(t, h, key)
	}
	h.settled(t)
	tokens, err := filepath.Glob(h.data + "/homes/*/tokens")
	must(t, err)
	h.look(t, check.Expect{Any: true, Tokens: tokens})
	if s.prepare != nil && !strings.Contains(s.name, "destroy") {
		if strings.Contains(h.carrel(t, "inspect", key), "paused") {
			h.carrel(t, "resume", key)
		}
		h.carrel(t, "exec", key, "--", "true")
	}
	if r := h.try("destroy", "--purge", key); r.code != 0 && !strings.Contains(r.err, "none with this key") {
		t.Errorf("destroy: %v", r)
	}
	h.settled(t)
	h.look(t, check.Expect{})
	if retained, err := filepath.Glob(h.data + "/retained/*"); err == nil {
		for _, dir := range retained {
			must(t, os.RemoveAll(dir))
		}
	}
	return true
}

// settled waits until every intent has its outcome: that is written after the answer.
func (h *host) settled(t testing.TB) {
	t.Helper()
	until(t, "the outcome of every intent", func() bool {
		b, err := os.ReadFile(h.data + "/daemon/audit/audit.jsonl")
		must(t, err)
		return strings.Count(string(b), `"type":"intent"`) == strings.Count(string(b), `"type":"outcome"`)
	})
}
