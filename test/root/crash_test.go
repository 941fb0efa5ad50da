package root_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The daemon killed while commands run: attached ones are hung up, detached ones live on
// and can be attached to, what was begun is closed as interrupted, nothing runs twice.
func TestDaemonKilled(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	stays := d.detach(t, "/bin/sh", "-c", "echo once >> runs; echo first; while [ ! -e go ]; do sleep 0.01; done; echo last; exit 6")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	attached := h.command(
		ctx, nil, "exec", d.Key, "--", "/bin/sh", "-c", "echo once >> runs; trap 'echo hung-up > hung-up; exit' HUP TERM; touch began; sleep "+
			"1000 & wait",
	)
	var said strings.Builder
	attached.Stderr = &said
	if err := attached.Start(); err != nil {
		t.Fatal(err)
	}
	d.sh(t, "while [ ! -e began ] || [ $(wc -l < runs) != 2 ]; do sleep 0.01; done")
	mark := h.mark(t)
	kill(t, h.part(t, "daemon"))

	err := attached.Wait()
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != 125 || !strings.Contains(said.String(), "carrel:") {
		t.Errorf("the client of the attached command: %v: %s", err, said.String())
	}
	t.Logf("the client was told: %s", strings.TrimSpace(said.String()))
	if r := d.try("true"); r.code != 125 {
		t.Errorf("without a daemon: %+v", r)
	}
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	h.recorded(t, mark, `"type":"outcome"`, `"status":"interrupted"`)
	h.carrel(t, "audit", "verify")
	d.well(t) // the executor is the one it was
	d.sh(t, "while [ ! -e hung-up ]; do sleep 0.01; done; touch go")
	r := h.try(nil, "", "attach", d.Key, stays)
	if r.code != 6 || r.out != "first\nlast\n" {
		t.Errorf("attach: %+v", r)
	}
	if out := d.sh(t, "wc -l < runs; ps -e -o args | grep -c '[s]leep 1000' || true"); out != "2\n0" {
		t.Errorf("%q", out)
	}
	h.settled(t)
}

// Over and over, with requests under way at every moment.
func TestDaemonKilledAgainAndAgain(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	for round := range 4 {
		busy, cancel := context.WithCancel(t.Context())
		done := make(chan int)
		for worker := range 3 {
			go func() {
				n := 0
				for busy.Err() == nil {
					ctx, stop := context.WithTimeout(t.Context(), patience)
					c := h.command(ctx, nil, "exec", d.Key, "--", "/bin/sh", "-c", fmt.Sprintf("echo %d-%d-%d >> ran", round, worker, n))
					_ = c.Run() // it fails while there is no daemon
					stop()
					n++
				}
				done <- n
			}()
		}
		d.sh(t, fmt.Sprintf("while ! grep -q '^%d-' ran; do sleep 0.001; done", round))
		kill(t, h.part(t, "daemon"))
		if err := h.up(); err != nil {
			t.Fatal(err)
		}
		cancel()
		for range 3 {
			<-done
		}
	}
	d.well(t)
	h.carrel(t, "audit", "verify")
	if twice := d.sh(t, "sort ran | uniq -d"); twice != "" {
		t.Errorf("these ran twice: %s", twice)
	}
	h.settled(t)
	if out := h.carrel(t, "ps", "-o", "json", d.Key); strings.TrimSpace(out) != "[]" {
		t.Errorf("commands are left: %s", out)
	}
}

// The broker killed: what runs goes on, and a new broker knows it.
func TestBrokerKilled(t *testing.T) {
	h := newHostFor(t)
	d, idle := h.desk(t), h.desk(t)
	id := d.detach(t, "/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; echo last")
	kill(t, h.part(t, "broker"))
	if out := d.sh(t, "echo well"); out != "well" {
		t.Errorf("without a broker: %q", out)
	}
	r := h.try(nil, "", "create", "crt without a broker")
	if r.code == 0 || !strings.Contains(r.err, "broker") {
		t.Errorf("create without a broker: %+v", r)
	}
	t.Logf("create says: %s", strings.TrimSpace(r.err))
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	d.well(t)
	idle.well(t)
	d.sh(t, "touch go")
	if out := h.carrel(t, "logs", "-f", d.Key, id); out != "last\n" {
		t.Errorf("logs: %q", out)
	}
	h.carrel(t, "stop", d.Key)
	if now := h.look(t, d.Key); now.State != "stopped" {
		t.Errorf("stopped: %+v", now)
	}
	d.sh(t, "echo started again")
	gone := idle.ExecutorPID
	h.carrel(t, "destroy", "--purge", idle.Key)
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", gone)); err == nil {
		t.Errorf("process %d of a destroyed workspace is left", gone)
	}
	h.carrel(t, "audit", "verify")
}

// The broker killed in the middle of everything that it does.
func TestBrokerKilledAtWork(t *testing.T) {
	needRoot(t)
	t.Parallel()
	h := newHostFor(t)
	for round := range 4 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 4 {
				key := fmt.Sprintf("crt %d-%d", round, i)
				_ = h.try(nil, "", "create", key) // any of it may fail
				_ = h.try(nil, "", "exec", key, "--", "true")
				if i%2 == 0 {
					_ = h.try(nil, "", "destroy", "--purge", key)
				}
			}
		}()
		until(t, "a workspace", func() bool { return strings.TrimSpace(h.try(nil, "", "ls", "-q").out) != "" || round > 0 })
		time.Sleep(time.Duration(7*round) * time.Millisecond) //nolint:forbidigo // at a different moment in each round
		kill(t, h.part(t, "broker"))
		if err := h.up(); err != nil {
			t.Fatal(err)
		}
		<-done
	}
	// Whatever stands, stands whole, or says what was begun; that can be finished.
	var all []desk
	if err := json.Unmarshal([]byte(h.carrel(t, "ls", "-o", "json")), &all); err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		t.Logf("%s is %s", d.Name, d.State)
		switch d.State {
		case "creating":
			h.carrel(t, "create", d.Key)
			fallthrough
		case "running", "stopped":
			h.carrel(t, "exec", d.Key, "--", "true")
		case "destroying":
		default:
			t.Errorf("%+v", d)
		}
		// The daemon may have finished it meanwhile.
		if r := h.try(nil, "", "destroy", "--purge", d.Key); r.code != 0 && !strings.Contains(r.err, "there is none with this key") {
			t.Errorf("cannot destroy %s: %s", d.Name, r.err)
		}
	}
	h.settled(t)
	h.carrel(t, "audit", "verify")
	for _, l := range leftovers(t, h) {
		t.Errorf("left: %s", l)
	}
}

// The broker killed while the tool runs that makes a user: that must not make it later,
// when the create has been undone and nobody looks any more.
func TestBrokerKilledWhileAUserIsMade(t *testing.T) {
	h := newHostFor(t)
	f, err := os.OpenFile("/etc/.pwd.lock", os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	control(t, f, func(fd int) error {
		return unix.FcntlFlock(uintptr(fd), unix.F_SETLKW, &unix.Flock_t{Type: unix.F_WRLCK})
	})
	key := "crt " + rand.Text()
	created := make(chan result, 1)
	go func() { created <- h.try(nil, "", "create", key) }()
	broker := h.part(t, "broker")
	var tool string
	until(t, "useradd", func() bool {
		all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", broker))
		for _, name := range all {
			children, _ := os.ReadFile(name)
			for pid := range strings.FieldsSeq(string(children)) {
				if comm, err := os.ReadFile("/proc/" + pid + "/comm"); err == nil && string(comm) == "useradd\n" {
					tool = pid
				}
			}
		}
		return tool != ""
	})
	kill(t, broker)
	// The next broker waits for the lock, for 15 s. All that a carrel of another test waits of that would be missing there.
	free := time.AfterFunc(3*time.Second, func() { f.Close() })
	defer free.Stop()
	began := time.Now()
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("the broker did not wait for the lock, but was up after %v", took)
	}
	until(t, "the end of useradd", func() bool {
		_, err := os.Stat("/proc/" + tool)
		return err != nil
	})
	<-created
	for _, l := range leftovers(t, h) {
		t.Errorf("left: %s", l)
	}
	h.carrel(t, "create", key)
	h.carrel(t, "exec", key, "--", "true")
	h.carrel(t, "destroy", "--purge", key)
}

// The executor killed: a clear error, and the next command starts another.
func TestExecutorKilled(t *testing.T) {
	d := shared.desk(t)
	d.sh(t, "echo kept > file")
	mark := shared.mark(t)
	result := make(chan result, 1)
	go func() { result <- d.try("/bin/sh", "-c", "touch began; sleep 1000") }()
	d.sh(t, "while [ ! -e began ]; do sleep 0.01; done")
	kill(t, d.ExecutorPID)
	r := <-result
	if r.code != 125 || !strings.Contains(r.err, "executor") || strings.Contains(r.err, ": unavailable") {
		t.Errorf("%+v", r)
	}
	t.Logf("the client was told: %s", strings.TrimSpace(r.err))
	until(t, "a workspace that works", func() bool { return d.try("true").code == 0 })
	if out := d.sh(t, "cat file; ps -e -o args | grep -c '[s]leep 1000' || true"); out != "kept\n0" {
		t.Errorf("%q", out)
	}
	if now := shared.look(t, d.Key); now.ExecutorPID == d.ExecutorPID || now.State != "running" {
		t.Errorf("%+v", now)
	}
	shared.recorded(t, mark, `"type":"outcome"`, "executor")
}

// leftovers lists what a carrel without workspaces should not have on the host.
func leftovers(t testing.TB, h *host) []string {
	t.Helper()
	var left []string
	for _, pattern := range []string{h.data + "/homes/*", h.data + "/tmp/*", h.run + "/x/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	text, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, ":"+h.data+"/") {
			left = append(left, "passwd: "+strings.TrimSpace(line))
		}
	}
	return left
}
