package broker_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
	"github.com/carrel-dev/carrel/test/leaks"
)

const name = id.Workspace("cbt-0123abcd")

// root is a hash as a checkpoint has it.
const root = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="

func TestTheTableIsClosed(t *testing.T) {
	want := []string{
		"countersign", "create", "destroy", "egress", "forget", "hello", "list", "pause", "report", "resume", "revive", "start",
		"stats", "stop", "update",
	}
	if got := slices.Sorted(maps.Keys(broker.Methods())); !slices.Equal(got, want) {
		t.Errorf("the operations are %v", got)
	}
	for m, n := range broker.Methods() {
		if n < 2 || n > broker.MaxRequest {
			t.Errorf("%s takes params of %d bytes", m, n)
		}
	}
}

// TestOutOfPlace: each of these ends the connection, and nothing is done to the host.
func TestOutOfPlace(t *testing.T) {
	for _, c := range []struct {
		what   string
		hello  bool
		method string
		params any
	}{
		{"before hello", false, "list", struct{}{}},
		{"create before hello", false, "create", brokerapi.CreateParams{Name: name, KeyDigest: digest}},
		{"a second hello", true, "hello", brokerapi.HelloParams{Version: brokerapi.Version}},
		{"another version", false, "hello", brokerapi.HelloParams{Version: brokerapi.Version + 1}},
		{"not in the table", true, "exec", struct{}{}},
		{"in another case", true, "Create", brokerapi.CreateParams{Name: name, KeyDigest: digest}},
		{"an unknown field", true, "stop", map[string]any{"name": name, "uid": 0}},
		{"a wrong type", true, "stop", map[string]any{"name": 1}},
		{"params too long", true, "stop", map[string]any{"name": strings.Repeat("a", 200)}},
		{"a frame too long", true, "create", map[string]any{"name": name, "key_digest": strings.Repeat("a", broker.MaxRequest)}},
		{"no name", true, "start", struct{}{}},
		{"a path as name", true, "destroy", map[string]any{"name": "../../etc"}},
		{"a slash in the name", true, "destroy", map[string]any{"name": "ws-0123abcd/x"}},
		{"root as name", true, "create", brokerapi.CreateParams{Name: "root", KeyDigest: digest}},
		{"an option as name", true, "create", brokerapi.CreateParams{Name: "-rf", KeyDigest: digest}},
		{"a newline in the name", true, "create", brokerapi.CreateParams{Name: "ws-0123abcd\n", KeyDigest: digest}},
		{"a NUL in the name", true, "create", brokerapi.CreateParams{Name: "ws-0123abc\x00", KeyDigest: digest}},
		{"a digest that is short", true, "create", brokerapi.CreateParams{Name: name, KeyDigest: "abc"}},
		{"a digest in capitals", true, "create", brokerapi.CreateParams{Name: name, KeyDigest: strings.ToUpper(digest)}},
		{"ids from the daemon", true, "create", map[string]any{"name": name, "key_digest": digest, "ids": map[string]int{"work": 0}}},
		{"a home from the daemon", true, "create", map[string]any{"name": name, "key_digest": digest, "home": "/root"}},
		{"an opening that there is not", true, "create", map[string]any{"name": name, "key_digest": digest, "allow": []string{"root"}}},
		{"mounts without namespaces", true, "create", map[string]any{"name": name, "key_digest": digest, "allow": []string{"mounts"}}},
		{"an opening twice", true, "create", map[string]any{"name": name, "key_digest": digest, "allow": []string{"userns", "userns"}}},
		{"a checkpoint without a root", true, "countersign", map[string]any{"origin": "log", "size": 1, "old": 0}},
		{"a checkpoint of nothing", true, "countersign", brokerapi.CountersignParams{Origin: "log", Root: root}},
		{"a checkpoint of less than nothing", true, "countersign", brokerapi.CountersignParams{Origin: "log", Size: 1, Old: -1, Root: root}},
		{"an origin of two lines", true, "countersign", brokerapi.CountersignParams{Origin: "log\n9", Size: 1, Root: root}},
		{"an origin with a space", true, "countersign", brokerapi.CountersignParams{Origin: "a log", Size: 1, Root: root}},
		{"a root in hexadecimal", true, "countersign", brokerapi.CountersignParams{Origin: "log", Size: 1, Root: digest}},
		{"a proof from nothing", true, "countersign", brokerapi.CountersignParams{Origin: "log", Size: 1, Root: root, Proof: []string{root}}},
		{"a proof from more", true, "countersign", brokerapi.CountersignParams{
			Origin: "log",
			Size:   1, Old: 2, Root: root, Proof: []string{root},
		}},
		{"no proof", true, "countersign", brokerapi.CountersignParams{Origin: "log", Size: 2, Old: 1, Root: root}},
		{"a proof of words", true, "countersign", brokerapi.CountersignParams{Origin: "log", Size: 2, Old: 1, Root: root, Proof: []string{"x"}}},
		{"a proof without end", true, "countersign", brokerapi.CountersignParams{
			Origin: "log",
			Size:   2, Old: 1, Root: root, Proof: slices.Repeat([]string{root}, 129),
		}},
		{
			"a text to sign", true, "countersign",
			map[string]any{"origin": "log", "size": 1, "root": root, "old": 0, "proof": []string{}, "text": "x"},
		},
		{"a list after a path", true, "list", map[string]any{"after": "../x"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t, c.hello)
			r.host.reset()
			if _, err := call[any](t, r.conn, c.method, c.params); err == nil {
				t.Error("it was accepted")
			}
			<-r.conn.Done()
			if did := r.host.reset(); len(did) > 0 {
				t.Errorf("it did %v", did)
			}
			if _, err := call[any](t, r.connect(t, true), "list", nil); err != nil {
				t.Errorf("the broker does not serve the next connection: %v", err)
			}
		})
	}
}

func TestNotifications(t *testing.T) {
	r := newRig(t, true)
	mustCreate(t, r.conn, name)
	r.host.reset()
	if err := r.conn.Notify(t.Context(), "destroy", brokerapi.DestroyParams{Name: name}); err != nil {
		t.Fatal(err)
	}
	<-r.conn.Done()
	if did := r.host.reset(); len(did) > 0 {
		t.Errorf("it did %v", did)
	}
}

func TestLifeOfAWorkspace(t *testing.T) {
	r := newRig(t, true)
	w := mustCreate(t, r.conn, name)
	if w.State != workspace.StateStopped || w.IDs != workspace.IDsFrom(first) || w.User != string(name) ||
		w.Home != "/homes/"+string(name) || w.Limits != workspace.DefaultLimits {
		t.Errorf("created %+v", w)
	}
	if _, err := call[any](t, r.conn, "report", brokerapi.NameParams{Name: name}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a report of what does not run: %v", err)
	}
	s, err := call[brokerapi.StartResult](t, r.conn, "start", brokerapi.NameParams{Name: name})
	if err != nil || s.Workspace.State != workspace.StateRunning || s.Workspace.Executor == nil || s.Report.Err() != nil {
		t.Fatalf("started %+v, %v", s, err)
	}
	again, err := call[brokerapi.StartResult](t, r.conn, "start", brokerapi.NameParams{Name: name})
	if err != nil || *again.Workspace.Executor != *s.Workspace.Executor {
		t.Errorf("a second start gave %+v, %v", again, err)
	}
	if rep, err := call[workspace.Report](t, r.conn, "report", brokerapi.NameParams{Name: name}); err != nil || rep.Err() != nil {
		t.Errorf("report %+v, %v", rep, err)
	}
	for range 2 {
		if w, err := call[brokerapi.Workspace](t, r.conn, "stop", brokerapi.NameParams{Name: name}); err != nil ||
			w.State != workspace.StateStopped || w.Executor != nil {
			t.Errorf("stopped %+v, %v", w, err)
		}
	}
	if _, err := call[brokerapi.StartResult](t, r.conn, "start", brokerapi.NameParams{Name: name}); err != nil {
		t.Fatal(err)
	}
	forget := func(id uint32) error {
		_, err := call[any](t, r.conn, "forget", brokerapi.ForgetParams{Name: name, ID: id})
		return err
	}
	for _, id := range []uint32{first, 0, 1000, 1<<32 - 1} {
		if err := forget(id); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("forgot the home of id %d: %v", id, err)
		}
	}
	r.host.reset()
	w, err = call[brokerapi.Workspace](t, r.conn, "destroy", brokerapi.DestroyParams{Name: name})
	if err != nil || w.State != workspace.StateDestroyed || w.Retained != fmt.Sprintf("/retained/%s.%d", name, first) {
		t.Errorf("destroyed %+v, %v", w, err)
	}
	// No process may be left when the user goes, and no user when the home is put aside.
	want := []string{
		"Kill " + string(name), "CleanUp " + string(name), "CleanUp " + string(name), "EndProcesses ",
		"RemoveUser " + string(name), "KeepHome " + string(name), "RemoveTemporary " + string(name),
	}
	if did := r.host.reset(); !slices.Equal(did, want) {
		t.Errorf("destroy did %q", did)
	}
	again2, err := call[brokerapi.Workspace](t, r.conn, "destroy", brokerapi.DestroyParams{Name: name})
	if err != nil || again2.Retained != w.Retained {
		t.Errorf("a second destroy gave %+v, %v", again2, err)
	}
	for _, m := range []string{"start", "stop", "report"} {
		if _, err := call[any](t, r.conn, m, brokerapi.NameParams{Name: name}); !errdefs.IsNotFound(err) {
			t.Errorf("%s of a destroyed one: %v", m, err)
		}
	}
	r.host.reset()
	for range 2 {
		if err := forget(first); err != nil {
			t.Error(err)
		}
	}
	step := fmt.Sprintf("ForgetHome %d %s", first, name)
	if did := r.host.reset(); !slices.Equal(did, []string{step, step}) {
		t.Errorf("forget did %q", did)
	}
	if w, err := call[brokerapi.Workspace](t, r.conn, "destroy", brokerapi.DestroyParams{Name: name}); err != nil || w.Retained != "" {
		t.Errorf("after it the home is said to be at %q, %v", w.Retained, err)
	}
	// The name may live again; the ids may not.
	if w := mustCreate(t, r.conn, name); w.IDs != workspace.IDsFrom(first+3) {
		t.Errorf("a new life has the ids %+v", w.IDs)
	}
}

func TestPurge(t *testing.T) {
	r := newRig(t, true)
	mustCreate(t, r.conn, name)
	r.host.reset()
	w, err := call[brokerapi.Workspace](t, r.conn, "destroy", brokerapi.DestroyParams{Name: name, Purge: true})
	did := r.host.reset()
	if err != nil || w.Retained != "" || !slices.Contains(did, "PurgeHome "+string(name)) || slices.Contains(did, "KeepHome "+string(name)) {
		t.Errorf("got %+v, %v, %q", w, err, did)
	}
}

func TestCreateAgain(t *testing.T) {
	r := newRig(t, true)
	w := mustCreate(t, r.conn, name)
	if again := mustCreate(t, r.conn, name); again.IDs != w.IDs {
		t.Errorf("the same key got the ids %+v and %+v", w.IDs, again.IDs)
	}
	other := brokerapi.CreateParams{Name: name, KeyDigest: strings.Repeat("0", 64)}
	if _, err := call[any](t, r.conn, "create", other); !errdefs.IsAlreadyExists(err) {
		t.Errorf("another key: %v", err)
	}
	r.host.set("NameFree", fmt.Errorf("planted: %w", errdefs.ErrAlreadyExists))
	if _, err := create(t, r.conn, "cbt-0123abcd-1"); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a user of the host: %v", err)
	}
	if _, err := call[any](t, r.conn, "list", nil); err != nil {
		t.Errorf("the connection did not survive: %v", err)
	}
}

func TestLimits(t *testing.T) {
	r := newRig(t, true)
	for _, l := range []workspace.Limits{{MemoryBytes: 1}, {MemoryBytes: -1}, {Pids: 1 << 40}, {MemoryBytes: 4 << 30}} {
		if _, err := call[any](t, r.conn, "create",
			brokerapi.CreateParams{Name: name, KeyDigest: digest, Limits: l}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("limits %+v: %v", l, err)
		}
	}
}

func TestIDsAreNeverReused(t *testing.T) {
	r := newRig(t, true)
	r.host.use(first + 4) // a user of the host in the middle of the second three
	seen := map[uint32]bool{}
	for i := range 6 {
		n := id.Workspace(fmt.Sprintf("cbt-0123abc%d", i))
		if i == 3 {
			r.host.set("AddUser", errPlanted)
			if _, err := create(t, r.conn, n); !errdefs.IsInternal(err) {
				t.Errorf("got %v", err)
			}
			r.host.set("AddUser", nil)
		}
		w := mustCreate(t, r.conn, n)
		for _, u := range []uint32{w.IDs.Executor, w.IDs.Work, w.IDs.Agent} {
			if seen[u] || u == first+4 {
				t.Errorf("id %d was given out again", u)
			}
			seen[u] = true
		}
		if i%2 == 0 {
			if _, err := call[any](t, r.conn, "destroy", brokerapi.DestroyParams{Name: n, Purge: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A create that starts as well is one line in the ledger, or nothing at all.
func TestCreateStarts(t *testing.T) {
	r := newRig(t, true)
	p := brokerapi.CreateParams{Name: name, KeyDigest: digest, Start: true}
	got, err := call[brokerapi.StartResult](t, r.conn, "create", p)
	if err != nil || got.Workspace.State != workspace.StateRunning || got.Workspace.Executor == nil || len(got.Report.Controls) != 1 {
		t.Errorf("started %+v: %v", got, err)
	}
	again, err := call[brokerapi.StartResult](t, r.conn, "create", p)
	if err != nil || again.Workspace.State != workspace.StateRunning || len(again.Report.Controls) != 0 {
		t.Errorf("again %+v: %v", again, err)
	}
	r.host.crash(name) // it is followed
	next, err := call[brokerapi.StartResult](t, r.conn, "start", brokerapi.NameParams{Name: name})
	if err != nil || next.Workspace.Executor.PID == got.Workspace.Executor.PID {
		t.Errorf("got %+v, %v", next, err)
	}

	// What was started goes with a user that could not be added.
	p.Name = "cbt-0123abc2"
	r.host.set("AddUser", errPlanted)
	if _, err := call[brokerapi.StartResult](t, r.conn, "create", p); err == nil || !strings.Contains(err.Error(), "planted") {
		t.Errorf("without a user: %v", err)
	}
	if u, h, g := r.host.left(); slices.Contains(u, p.Name) || slices.Contains(h, p.Name) || slices.Contains(g, p.Name) {
		t.Errorf("left %v %v %v", u, h, g)
	}
	r.host.set("AddUser", nil)

	// One that does not start is there, and its start says why.
	r.host.set("Start", errPlanted)
	got, err = call[brokerapi.StartResult](t, r.conn, "create", p)
	if err != nil || got.Workspace.State != workspace.StateStopped || got.Workspace.Executor != nil || len(got.Report.Controls) != 0 {
		t.Errorf("not started %+v: %v", got, err)
	}
	if _, err := call[any](t, r.conn, "start", brokerapi.NameParams{Name: p.Name}); err == nil || !strings.Contains(err.Error(), "planted") {
		t.Errorf("got %v", err)
	}
}

// TestDaemonThatGoesAway: an operation that was begun is finished.
func TestDaemonThatGoesAway(t *testing.T) {
	r := newRig(t, true)
	mustCreate(t, r.conn, name)
	entered, release := r.host.hold()
	c := r.connect(t, true)
	go func() { _, _ = c.Call(context.Background(), "start", brokerapi.NameParams{Name: name}, nil) }()
	<-entered
	_ = c.Close()
	close(release)
	// The next request on the workspace waits for the first.
	if rep, err := call[workspace.Report](t, r.conn, "report", brokerapi.NameParams{Name: name}); err == nil && rep.Err() != nil {
		t.Errorf("report %+v", rep)
	}
	if w, err := call[brokerapi.Workspace](t, r.conn, "stop", brokerapi.NameParams{Name: name}); err != nil ||
		w.State != workspace.StateStopped {
		t.Errorf("got %+v, %v", w, err)
	}
	if did := r.host.reset(); !slices.Contains(did, "Kill "+string(name)) {
		t.Errorf("the start was not finished: %q", did)
	}
}

func TestManyAtOnce(t *testing.T) {
	r := newRig(t, true)
	var wg sync.WaitGroup
	for i := range 40 {
		n := id.Workspace(fmt.Sprintf("cbt-0123ab%02d", i%10))
		wg.Go(func() {
			for _, m := range []string{"create", "start", "stop", "start", "destroy"} {
				var p any = brokerapi.NameParams{Name: n}
				if m == "create" {
					p = brokerapi.CreateParams{Name: n, KeyDigest: digest}
				}
				_, err := call[any](t, r.conn, m, p)
				if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
					t.Errorf("%s %s: %v", m, n, err)
				}
			}
		})
	}
	wg.Wait()
	if l, err := call[brokerapi.ListResult](t, r.conn, "list", nil); err != nil || len(l.Workspaces) != 0 {
		t.Errorf("left %+v, %v", l, err)
	}
	if u, h, g := r.host.left(); len(u)+len(h)+len(g) > 0 {
		t.Errorf("left %v %v %v", u, h, g)
	}
}

func TestListInParts(t *testing.T) {
	r := newRig(t, true)
	const n = 600
	for i := range n {
		mustCreate(t, r.conn, id.Workspace(fmt.Sprintf("cbt-%08x", i)))
	}
	var got []id.Workspace
	for p := (brokerapi.ListParams{}); ; {
		l, err := call[brokerapi.ListResult](t, r.conn, "list", p)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range l.Workspaces {
			got = append(got, w.Name)
		}
		if !l.More {
			break
		}
		p.After = got[len(got)-1]
	}
	if len(got) != n || !slices.IsSorted(got) {
		t.Errorf("got %d workspaces", len(got))
	}
}

func TestMaxWorkspacesAndConnections(t *testing.T) {
	r := newRig(t, true)
	var held []*jsonrpc.Conn
	for range 15 {
		held = append(held, r.connect(t, true))
	}
	_, z := socketPair(t)
	if _, err := r.server.Attach(z, nil); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a 17th connection: %v", err)
	}
	for _, c := range held {
		_ = c.Close()
	}
}

// hostGone is a hostDouble on which one executor has ended and one cannot be told.
type hostGone struct {
	*hostDouble
	gone, unsure id.Workspace
}

func TestMain(m *testing.M) {
	if path := os.Getenv("BROKER_TEST_CONNECT"); path != "" {
		if err := connectAndAsk(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv("BROKER_TEST_VFORK") != "" {
		sleepInVfork() // until it is killed
	}
	leaks.Main(m, removeBinaries)
}
