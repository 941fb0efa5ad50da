package keeper_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/egress/keeper"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// far is the far end of control sockets: a fake carrel-egress.
type far struct {
	mu     sync.Mutex
	refuse error         // what a start fails with
	hang   bool          // a start takes all its time
	mute   int           // how many Setups get no answer
	starts []time.Time   // attempts
	setups []int         // how many rules each Setup had
	last   *net.UnixConn // of the newest process
}

func (f *far) start(ctx context.Context) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.starts = append(f.starts, time.Now())
	if f.hang {
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
		return nil, ctx.Err()
	}
	if f.refuse != nil {
		return nil, f.refuse
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	end := os.NewFile(uintptr(fds[1]), "far")
	defer end.Close()
	c, err := net.FileConn(end)
	if err != nil {
		return nil, err
	}
	f.last = c.(*net.UnixConn)
	go f.serve(f.last)
	return os.NewFile(uintptr(fds[0]), "near"), ctx.Err()
}

func (f *far) serve(c *net.UnixConn) {
	defer c.Close()
	in := bufio.NewScanner(c)
	in.Buffer(nil, egressapi.MaxSetup)
	for in.Scan() {
		var s egressapi.Setup
		if json.Unmarshal(in.Bytes(), &s) != nil {
			return
		}
		f.mu.Lock()
		f.setups = append(f.setups, len(s.Rules))
		mute := f.mute > 0
		f.mute = max(0, f.mute-1)
		f.mu.Unlock()
		if !mute {
			_ = json.NewEncoder(c).Encode(egressapi.Report{Ready: true})
		}
	}
}

// set changes how starts go from now on, and ends the newest process.
func (f *far) set(refuse error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = refuse
	f.last.Close()
}

func (f *far) attempts() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time{}, f.starts...)
}

func remote(t *testing.T, f *far) (*keeper.Keeper, chan error) {
	t.Helper()
	trouble := make(chan error, 1000)
	k, err := keeper.Start(t.Context(), keeper.Config{
		Starter: keeper.Remote(f.start), Retry: true,
		Connection: func(egressapi.Connection) {}, Trouble: func(err error) { trouble <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k, trouble
}

func rules(t *testing.T, n int) []netrule.Rule {
	t.Helper()
	r, err := netrule.ParseRule(netrule.Allow, "example.org")
	if err != nil {
		t.Fatal(err)
	}
	all := make([]netrule.Rule, n)
	for i := range all {
		all[i] = r
	}
	return all
}

// A start that fails is tried again after growing pauses, is told once, and is tried at once when the rules change.
func TestRetry(t *testing.T) {
	t.Parallel()
	f := &far{}
	k, trouble := remote(t, f)
	f.set(errors.New("no room"))
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); len(f.attempts()) < 4 && time.Now().Before(end); <-tick.C {
	}
	at := f.attempts()
	if len(at) < 4 {
		t.Fatalf("%d attempts", len(at))
	}
	for i, least := range []time.Duration{time.Second, 2 * time.Second} {
		if pause := at[i+2].Sub(at[i+1]); pause < least || pause > least+time.Second {
			t.Errorf("pause %d is %v", i, pause)
		}
	}
	for _, want := range []string{"ended by itself", "no room"} {
		if err := <-trouble; !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
	if len(trouble) != 0 {
		t.Errorf("told again: %v", <-trouble)
	}
	if err := k.SetRules(t.Context(), rules(t, 1)); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("rules without a process: %v", err)
	}
	f.mu.Lock()
	f.refuse = nil
	f.mu.Unlock()
	began := time.Now()
	if err := k.SetRules(t.Context(), rules(t, 2)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the change waited %v for a pause", took)
	}
	f.set(nil) // what the change started is watched too
	began = time.Now()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-tick.C {
		f.mu.Lock()
		got := append([]int{}, f.setups...)
		f.mu.Unlock()
		if len(got) == 3 {
			if got[1] != 2 || got[2] != 2 {
				t.Errorf("processes serve by %v rules", got)
			}
			if time.Since(began) < time.Second {
				t.Error("a second process was started beside that of the change")
			}
			return
		}
	}
	t.Error("the process that a change started is not replaced")
}

// One that ends again and again is started at a growing pace, for ever.
func TestRetryAfterManyEnds(t *testing.T) {
	t.Parallel()
	f := &far{}
	remote(t, f)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	// The pauses between attempts. A process that is ended before it has answered counts as one that does not start, and
	// is not replaced at once; so how many were before the first pause is not certain.
	pauses := func() (quick int, long []time.Duration) {
		at := f.attempts()
		for i := range at[1:] {
			if gap := at[i+1].Sub(at[i]); gap < time.Second {
				quick++
			} else {
				long = append(long, gap)
			}
		}
		return quick, long
	}
	enough := func() bool { _, long := pauses(); return len(long) >= 2 }
	for end := time.Now().Add(20 * time.Second); !enough() && time.Now().Before(end); <-tick.C {
		f.set(nil)
	}
	quick, long := pauses()
	if len(long) < 2 || long[1] < 2*time.Second {
		t.Errorf("the pauses are %v", long)
	}
	if quick > 5 {
		t.Errorf("%d were replaced at once", quick)
	}
}

// A process that does not answer to a change is replaced by one that serves by the new rules.
func TestMuteProcess(t *testing.T) {
	f := &far{}
	k, _ := remote(t, f)
	f.mu.Lock()
	f.mute = 1
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := k.SetRules(ctx, rules(t, 1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a change without an answer: %v", err)
	}
	if err := k.SetRules(t.Context(), rules(t, 3)); err != nil {
		t.Error(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.setups); len(f.starts) < 2 || f.setups[n-1] != 3 {
		t.Errorf("%d starts, rules %v", len(f.starts), f.setups)
	}
}

// Close interrupts what waits for a process.
func TestCloseInterrupts(t *testing.T) {
	f := &far{}
	k, _ := remote(t, f)
	f.mu.Lock()
	f.mute = 1
	f.mu.Unlock()
	changed := make(chan error, 1)
	go func() { changed <- k.SetRules(t.Context(), nil) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for told := 0; told < 2; <-tick.C {
		f.mu.Lock()
		told = len(f.setups)
		f.mu.Unlock()
	}
	began := time.Now()
	k.Close()
	if err := <-changed; err == nil {
		t.Error("an interrupted change succeeds")
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("Close took %v", took)
	}
	if err := k.SetRules(t.Context(), nil); !errdefs.IsUnavailable(err) {
		t.Errorf("after Close: %v", err)
	}
}

// Close interrupts a pause and a start too.
func TestCloseInterruptsRestarts(t *testing.T) {
	for _, hang := range []bool{false, true} {
		f := &far{}
		k, _ := remote(t, f)
		f.mu.Lock()
		f.hang = hang
		f.mu.Unlock()
		f.set(errors.New("no room"))
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for len(f.attempts()) < 2 {
			<-tick.C
		}
		began := time.Now()
		k.Close()
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("hang %v: Close took %v", hang, took)
		}
	}
}

// A context that has ended starts nothing, and a first start that fails is not tried again.
func TestFirstStartFails(t *testing.T) {
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	f := &far{}
	c := keeper.Config{
		Starter: keeper.Remote(f.start), Retry: true, Connection: func(egressapi.Connection) {}, Trouble: func(error) {},
	}
	if _, err := keeper.Start(dead, c); !errors.Is(err, context.Canceled) || len(f.starts) != 0 {
		t.Errorf("with a dead context: %v, %d starts", err, len(f.starts))
	}
	f.refuse = errors.New("no room")
	if _, err := keeper.Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "no room") || len(f.starts) != 1 {
		t.Errorf("%v, %d starts", err, len(f.starts))
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	c.Starter = keeper.Remote(func(context.Context) (*os.File, error) { return file, nil })
	if _, err := keeper.Start(t.Context(), c); err == nil {
		t.Error("a file is taken for a control socket")
	}
}

// Rules that are too many are refused, and the process goes on with those that it has.
func TestTooManyRules(t *testing.T) {
	f := &far{}
	k, trouble := remote(t, f)
	many := rules(t, egressapi.MaxSetup/40)
	if err := k.SetRules(t.Context(), many); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
	if err := keeper.Check(egressapi.Setup{Rules: many}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
	if err := k.SetRules(t.Context(), rules(t, 1)); err != nil || len(trouble) != 0 || len(f.attempts()) != 1 {
		t.Errorf("after that: %v, %d starts", err, len(f.attempts()))
	}
}
