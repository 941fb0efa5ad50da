package executor_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// survivor is a workspace with a detached command that has to outlive what is done to its executor.
type survivor struct {
	*client
	w      *launchtest.Workspace
	before id.Command
}

func newSurvivor(t *testing.T) *survivor {
	t.Helper()
	w, err := launchtest.StartLimited(t, workspace.Limits{MemoryBytes: 512 << 20, Pids: 1200, CPUWeight: 100, OpenFiles: 8192}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &survivor{client: dial(t, w, execapi.Spawn), w: w}
	s.before, _ = s.start(execapi.ExecParams{
		Argv: []string{"/bin/sh", "-c", "echo before; exec sleep 1000"}, Detach: true,
	}, execapi.MethodExec)
	return s
}

// lives checks that the executor answers, runs commands, and has lost neither the command that was
// started before nor what that wrote.
func (s *survivor) lives() {
	s.t.Helper()
	if r := s.sh("echo works"); string(r.Stdout) != "works\n" {
		s.t.Errorf("a command after it wrote %q", r.Stdout)
	}
	if c := s.listed(s.before); c.Status != nil || c.Processes != 1 {
		s.t.Errorf("the command that was started before does not run: %+v", c)
	}
	if got, o := s.logs(s.before); string(got) != "before\n" || o.Lost != 0 {
		s.t.Errorf("of the command that was started before are kept %q, %d bytes lost", got, o.Lost)
	}
	s.t.Logf("the executor's group used at most %.1f MiB of %d", float64(s.peak())/(1<<20), cgroup.SupMemoryBytes>>20)
}

func (s *survivor) listed(n id.Command) execapi.Command {
	s.t.Helper()
	var l execapi.ListResult
	if _, err := dial(s.t, s.w, execapi.Control).Call(s.t.Context(), execapi.MethodList, nil, &l); err != nil {
		s.t.Fatalf("the executor does not answer: %v", err)
	}
	for _, c := range l.Commands {
		if c.ID == n {
			return c
		}
	}
	return execapi.Command{}
}

// running is how many commands are listed.
func (s *survivor) running() int {
	var l execapi.ListResult
	if _, err := s.Call(s.t.Context(), execapi.MethodList, nil, &l); err != nil {
		s.t.Fatalf("the executor does not answer: %v", err)
	}
	return len(l.Commands)
}

// gate makes a file that commands wait for when they open it, and returns what lets all go on.
func (s *survivor) gate() (release func()) {
	s.sh("mkfifo go")
	return func() {
		s.start(execapi.ExecParams{Argv: []string{"/bin/sh", "-c", "exec 3<>go; exec sleep 1000"}, Detach: true}, execapi.MethodExec)
	}
}

// peak is how much memory the executor's group has used at most.
func (s *survivor) peak() int64 {
	for _, pattern := range []string{
		"/sys/fs/cgroup/memory/carrel-test-%d/%s/sup/memory.max_usage_in_bytes", "/sys/fs/cgroup/carrel-test-%d/%s/sup/memory.peak",
	} {
		found, _ := filepath.Glob(fmt.Sprintf(pattern, os.Getpid(), s.w.Name))
		for _, path := range found {
			b, _ := os.ReadFile(path)
			n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			return n
		}
	}
	return -1
}

// logs reads what is kept of a command's output.
func (s *survivor) logs(n id.Command) ([]byte, execapi.OutputResult) {
	s.t.Helper()
	var o execapi.OutputResult
	far, err := s.Call(s.t.Context(), execapi.MethodLogs, execapi.OutputParams{ID: n}, &o)
	if err != nil {
		s.t.Fatalf("cannot read the output of %s: %v", n, err)
	}
	defer far[0].Close()
	b, err := io.ReadAll(far[0])
	if err != nil {
		s.t.Fatal(err)
	}
	return b, o
}

// ended starts a detached command and waits for its end, by following it.
func (s *survivor) ended(script string, limit int64) id.Command {
	s.t.Helper()
	n, _ := s.start(execapi.ExecParams{Argv: []string{"/bin/sh", "-c", script}, Detach: true, OutputLimit: limit}, execapi.MethodExec)
	far, err := s.Call(s.t.Context(), execapi.MethodLogs, execapi.OutputParams{ID: n, Follow: true}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer far[0].Close()
	_, _ = io.Copy(io.Discard, far[0])
	return n
}

func TestKeptOutputOfManyEndedCommands(t *testing.T) {
	s := newSurvivor(t)
	const size, count = 1 << 20, 80
	var all []id.Command
	for i := range count {
		all = append(all, s.ended(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo end %d", size, i), 2*size))
	}
	s.lives()
	// The newest are whole; the oldest are lost, and say so.
	for i, n := range all {
		want := fmt.Sprintf("xend %d\n", i)
		got, o := s.logs(n)
		switch whole := int64(size + len(want) - 1); {
		case o.Lost+int64(len(got)) != whole:
			t.Errorf("command %d: kept %d, lost %d of %d", i, len(got), o.Lost, whole)
		case i == 0 && o.Lost != whole:
			t.Errorf("the oldest is kept, of %d ended ones: %d bytes", count, len(got))
		case i >= count-8 && (o.Lost != 0 || !bytes.HasSuffix(got, []byte(want))):
			t.Errorf("command %d is one of the newest: lost %d", i, o.Lost)
		}
	}
}

func TestTheLargestKeptOutput(t *testing.T) {
	s := newSurvivor(t)
	const written = 60_000_000
	n := s.ended(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo end", written-4), execapi.MaxOutput)
	got, o := s.logs(n)
	if len(got) != execapi.MaxOutput || o.Lost != written-execapi.MaxOutput || !bytes.HasSuffix(got, []byte("xend\n")) {
		t.Errorf("kept %d, lost %d", len(got), o.Lost)
	}
	s.lives()
}

// Rings of running commands give way to each other, the largest first, and every one keeps its newest.
func TestKeptOutputOfManyRunningCommands(t *testing.T) {
	s := newSurvivor(t)
	script := "head -c 6000000 /dev/zero | tr '\\0' x; echo end; touch done.$0; exec sleep 1000"
	const count = 12
	var all []id.Command
	for i := range count {
		n, _ := s.start(execapi.ExecParams{
			Argv: []string{"/bin/sh", "-c", script, strconv.Itoa(i)}, Detach: true, OutputLimit: execapi.MaxOutput,
		}, execapi.MethodExec)
		all = append(all, n)
	}
	s.sh(fmt.Sprintf("while [ $(ls done.* 2>/dev/null | wc -l) -lt %d ]; do sleep 0.05; done", count))
	s.lives()
	for i, n := range all {
		var got []byte
		var o execapi.OutputResult
		for end := time.Now().Add(10 * time.Second); !bytes.HasSuffix(got, []byte("xend\n")); {
			if time.Now().After(end) {
				t.Fatalf("command %d: the newest output is not kept: %d bytes, lost %d", i, len(got), o.Lost)
			}
			got, o = s.logs(n)
		}
		if o.Lost+int64(len(got)) != 6_000_004 {
			t.Errorf("command %d: kept %d, lost %d", i, len(got), o.Lost)
		}
	}
}

func TestCapturedOutputOfManyCommands(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector takes memory of its own")
	}
	s := newSurvivor(t)
	const count, each = 240, 400_000
	release := s.gate()
	script := fmt.Sprintf("head -c %d /dev/zero; head -c %d /dev/zero >&2; : < go", each, each)
	var all sync.WaitGroup
	for range count {
		all.Go(func() {
			r, err := s.run(execapi.ExecParams{Argv: []string{"/bin/sh", "-c", script}})
			if err != nil {
				t.Errorf("a command among many: %v", err)
				return
			}
			if got := int64(len(r.Stdout)) + r.StdoutLost; got != each {
				t.Errorf("of %d bytes, %d are kept and %d lost", each, len(r.Stdout), r.StdoutLost)
			}
		})
	}
	other := &survivor{client: dial(t, s.w, execapi.Control), w: s.w, before: s.before}
	for other.running() < count+1 {
		unix.Poll(nil, 50)
	}
	release()
	all.Wait()
	s.lives()
	// All room is free again.
	if r := s.sh(fmt.Sprintf("head -c %d /dev/zero", execapi.MaxCapture)); r.StdoutLost != 0 {
		t.Errorf("afterwards %d bytes are lost of %d", r.StdoutLost, execapi.MaxCapture)
	}
}

// Input that commands do not read is kept for them, within the same bounds.
func TestUnreadInputOfManyCommands(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector takes memory of its own")
	}
	s := newSurvivor(t)
	data := bytes.Repeat([]byte("x"), execapi.MaxCapture)
	release := s.gate()
	var all sync.WaitGroup
	var mu sync.Mutex
	refused := 0
	for range 240 {
		all.Go(func() {
			_, err := s.run(execapi.ExecParams{
				Argv: []string{"/bin/sh", "-c", ": < go"}, Stdin: execapi.Capture, StdinData: data,
			})
			mu.Lock()
			defer mu.Unlock()
			if errdefs.IsResourceExhausted(err) {
				refused++
			} else if err != nil {
				t.Errorf("a command among many: %v", err)
			}
		})
	}
	other := &survivor{client: dial(t, s.w, execapi.Control), w: s.w, before: s.before}
	held := func() int {
		mu.Lock()
		defer mu.Unlock()
		return refused + other.running() - 1
	}
	for end := time.Now().Add(60 * time.Second); held() < 240 && time.Now().Before(end); {
		unix.Poll(nil, 50)
	}
	release()
	all.Wait()
	if refused == 0 || refused > 200 {
		t.Errorf("%d of 240 were refused", refused)
	}
	s.lives()
}

// followAll follows a command until it is refused or count do, and returns the descriptors.
func (s *survivor) followAll(n id.Command, method string, count int) (far []*os.File, refused int) {
	s.t.Helper()
	for range count {
		f, err := s.Call(s.t.Context(), method, execapi.OutputParams{ID: n, Follow: true}, nil)
		switch {
		case err == nil:
			far = append(far, f[0])
		case errdefs.IsResourceExhausted(err) && strings.Contains(err.Error(), "carrel logs"):
			refused++
		default:
			s.t.Fatalf("following is refused otherwise: %v", err)
		}
	}
	return far, refused
}

func TestManyFollowers(t *testing.T) {
	s := newSurvivor(t)
	n, _ := s.start(execapi.ExecParams{
		Argv: []string{
			"/bin/sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x; while [ ! -e go ]; do sleep 0.05; done; echo end; exec sleep 1000",
		},
		Detach: true,
	}, execapi.MethodExec)
	far, refused := s.followAll(n, execapi.MethodLogs, 1500)
	if len(far) != execapi.MaxFollowers || refused != 1500-execapi.MaxFollowers {
		t.Errorf("%d follow, %d were refused", len(far), refused)
	}
	for _, f := range far[2:] {
		f.Close()
	}
	// Two that stay are served, one of which has read nothing yet; those that left give their place back.
	s.sh("touch go")
	for _, f := range far[:2] {
		all := readUntil(t, f, "end\n")
		if len(all) != 1_000_004 {
			t.Errorf("a follower got %d bytes", len(all))
		}
		f.Close()
	}
	s.lives()
	// Leaving is noticed also where nothing is written.
	for end := time.Now().Add(10 * time.Second); ; {
		again, _ := s.followAll(n, execapi.MethodLogs, execapi.MaxFollowers)
		for _, f := range again {
			f.Close()
		}
		if len(again) == execapi.MaxFollowers {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("only %d places were given back", len(again))
		}
	}
}

func TestManyFollowersOfATerminal(t *testing.T) {
	s := newSurvivor(t)
	n, _ := s.start(execapi.ExecParams{
		Argv:   []string{"/bin/sh", "-c", "head -c 500000 /dev/zero | tr '\\0' x; exec sleep 1000"},
		Detach: true, Rows: 24, Cols: 80,
	}, execapi.MethodSpawnTerminal)
	far, _ := s.followAll(n, execapi.MethodAttach, 1500)
	if len(far) != execapi.MaxFollowers {
		t.Errorf("%d follow", len(far))
	}
	s.closeAndLive(far)
}

// closeAndLive is lives once followers have made room for the reader that it needs.
func (s *survivor) closeAndLive(far []*os.File) {
	s.t.Helper()
	for _, f := range far {
		f.Close()
	}
	s.lives()
}

// A follower that does not read loses output; the command does not wait for it.
func TestAFollowerThatDoesNotReadHoldsNothingUp(t *testing.T) {
	s := newSurvivor(t)
	n, _ := s.start(execapi.ExecParams{
		Argv:   []string{"/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; head -c 30000000 /dev/zero; touch done; exec sleep 1000"},
		Detach: true,
	}, execapi.MethodExec)
	far, _ := s.followAll(n, execapi.MethodLogs, 20)
	s.sh("touch go; while [ ! -e done ]; do sleep 0.05; done")
	s.closeAndLive(far)
}
