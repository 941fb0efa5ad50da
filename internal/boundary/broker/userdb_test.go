package broker_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// ended is a pid that no process has any more.
func ended(t *testing.T) int {
	t.Helper()
	c := exec.CommandContext(t.Context(), "true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	return c.Process.Pid
}

// What a tool of ours left that was killed goes; what others left or hold stays.
func TestLocksOfAKilledTool(t *testing.T) {
	own, other := ended(t), os.Getpid()
	boot := "this boot"
	for what, c := range map[string]struct {
		note  string
		files map[string]string
		stay  []string
	}{
		"ours": {
			note: fmt.Sprintf(`{"pid":%d,"start_time":1,"boot_id":%q}`, own, boot),
			files: map[string]string{
				"passwd.lock": fmt.Sprintf("%d\x00", own), "passwd+": "half",
				fmt.Sprintf("shadow.%d", own): fmt.Sprint(own), "group.lock": fmt.Sprint(own),
			},
		},
		"its pid is another's now": {
			note:  fmt.Sprintf(`{"pid":%d,"start_time":1,"boot_id":%q}`, other, boot),
			files: map[string]string{"passwd.lock": fmt.Sprint(other)},
		},
		"of an earlier boot": {
			note:  fmt.Sprintf(`{"pid":%d,"start_time":1,"boot_id":"another"}`, other),
			files: map[string]string{"gshadow.lock": fmt.Sprint(other)},
		},
		"another tool's": {
			note:  fmt.Sprintf(`{"pid":%d,"start_time":1,"boot_id":%q}`, own, boot),
			files: map[string]string{"passwd.lock": fmt.Sprint(other), "passwd+": "half", fmt.Sprintf("shadow.%d", other): "x"},
			stay:  []string{"passwd+", "passwd.lock", fmt.Sprintf("shadow.%d", other)},
		},
		"nothing noted": {
			files: map[string]string{"passwd.lock": fmt.Sprint(own)},
			stay:  []string{"passwd.lock"},
		},
		"a torn note": {
			note:  `{"pid":`,
			files: map[string]string{"passwd.lock": fmt.Sprint(own), "group.lock": fmt.Sprint(other)},
			stay:  []string{"group.lock"},
		},
	} {
		etc, state := t.TempDir(), t.TempDir()
		if c.note != "" {
			if err := os.WriteFile(filepath.Join(state, "tool"), []byte(c.note), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range c.files {
			if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := broker.Tidy(t.Context(), etc, state, boot); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		var left []string
		list, err := os.ReadDir(etc)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.Name() != ".pwd.lock" {
				left = append(left, e.Name())
			}
		}
		slices.Sort(c.stay)
		if !slices.Equal(left, c.stay) {
			t.Errorf("%s: %q are left, want %q", what, left, c.stay)
		}
		if _, err := os.Stat(filepath.Join(state, "tool")); err == nil {
			t.Errorf("%s: the note is left", what)
		}
	}
}

// A tool that is ending, or that nobody has waited for yet, is waited for.
func TestLocksOfAToolThatEnds(t *testing.T) {
	etc, state := t.TempDir(), t.TempDir()
	tool := exec.CommandContext(t.Context(), "sleep", "0.1")
	if err := tool.Start(); err != nil {
		t.Fatal(err)
	}
	lock := etc + "/group." + strconv.Itoa(tool.Process.Pid)
	for _, path := range []string{state + "/tool", lock} {
		if err := os.WriteFile(path, []byte(`{"pid":0}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := broker.Tidy(t.Context(), etc, state, "b"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(lock); err == nil {
		t.Error("left")
	}
	if err := tool.Wait(); err != nil {
		t.Error(err)
	}
}

// While another program holds the user database nothing is taken away.
func TestLocksWaitForTheirHolder(t *testing.T) {
	etc, state := t.TempDir(), t.TempDir()
	unlock := lockUsers(t, etc)
	pid := ended(t)
	for path, text := range map[string]string{
		etc + "/passwd.lock": fmt.Sprint(pid),
		state + "/tool":      fmt.Sprintf(`{"pid":%d,"start_time":1,"boot_id":"b"}`, pid),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(context.DeadlineExceeded)
	if err := broker.Tidy(ctx, etc, state, "b"); err == nil || !strings.Contains(err.Error(), "fuser") {
		t.Errorf("the lock is held: %v", err)
	}
	if _, err := os.Stat(etc + "/passwd.lock"); err != nil {
		t.Error("removed while another held the user database")
	}
	unlock()
	if err := broker.Tidy(t.Context(), etc, state, "b"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(etc + "/passwd.lock"); err == nil {
		t.Error("left")
	}
}

func lockUsers(t *testing.T, etc string) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(etc+"/.pwd.lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

// forgetLine removes the line of name from a file of the user database, as a tool that
// was killed before it came to the next file has.
func forgetLine(t *testing.T, db, name string) {
	t.Helper()
	defer lockUsers(t, "/etc")()
	path := "/etc/" + db
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	var kept strings.Builder
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, name+":") {
			kept.WriteString(line)
		}
	}
	next := path + ".carrel-test"
	if err := os.WriteFile(next, []byte(kept.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(next, int(st.Uid), int(st.Gid)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(next, os.FileMode(st.Mode&0o777)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// A tool killed between two files leaves a user in some of them: a destroy removes it
// from all.
func TestTornUserIsRemoved(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	for _, gone := range [][]string{
		{"passwd"},
		{"passwd", "group"},
		{"passwd", "shadow"},
		{"passwd", "shadow", "group"},
		{"shadow"},
		{"gshadow"},
		{"group"},
	} {
		e := p.create(t, life)
		for _, db := range gone {
			forgetLine(t, db, string(p.name))
		}
		if _, err := life.Destroy(t.Context(), brokerapi.DestroyParams{Name: p.name, Purge: true}); err != nil {
			t.Errorf("without a line in %q: %v", gone, err)
		}
		for _, db := range []string{"passwd", "shadow", "group", "gshadow"} {
			b, err := os.ReadFile("/etc/" + db)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(b), string(p.name)) {
				t.Errorf("without a line in %q: %s still has %s", gone, db, p.name)
			}
		}
		p.gone(t, e)
	}
}

// A broker that was killed before it knew the process of its tool: what was made since by
// processes that have ended goes, and nothing else.
func TestToolsWithoutAName(t *testing.T) {
	etc, state := t.TempDir(), t.TempDir()
	gone, lives := ended(t), os.Getpid()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	older := fmt.Sprintf("%s/shadow.%d", etc, gone)
	write(older, fmt.Sprint(gone))
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(older, past, past); err != nil {
		t.Fatal(err)
	}
	write(state+"/tool", `{"pid":0,"start_time":0,"boot_id":"b"}`)
	write(fmt.Sprintf("%s/group.%d", etc, gone), "")
	write(etc+"/passwd.lock", fmt.Sprint(gone))
	write(etc+"/passwd+", "half")
	write(etc+"/gshadow.lock", fmt.Sprint(lives))
	write(etc+"/gshadow+", "half")
	write(fmt.Sprintf("%s/subuid.%d", etc, lives), fmt.Sprint(lives))
	if err := broker.Tidy(t.Context(), etc, state, "b"); err != nil {
		t.Fatal(err)
	}
	var left []string
	list, err := os.ReadDir(etc)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		left = append(left, e.Name())
	}
	want := []string{".pwd.lock", "gshadow+", "gshadow.lock", filepath.Base(older), fmt.Sprintf("subuid.%d", lives)}
	if !slices.Equal(left, want) {
		t.Errorf("%q are left, want %q", left, want)
	}
	if _, err := os.Stat(state + "/tool"); err == nil {
		t.Error("the note is left")
	}
}

// Somebody kills the tools at work on the user database, at any moment of their work. They are run again,
// and what they had done by half is no hindrance.
func TestKilledToolsAreRunAgain(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	var killed atomic.Int32
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		left, spared := 3, 0 // how many more are killed before one is let through, and which that was
		for n := 0; ; n++ {
			select {
			case <-end:
				return
			case <-time.After(time.Duration(n%7) * time.Millisecond):
			}
			for _, tool := range children(t, "useradd", "userdel", "groupdel") {
				switch {
				case tool.Pid == spared:
				case left == 0:
					left, spared = 3, tool.Pid
				case tool.Kill() == nil:
					left--
					killed.Add(1)
				}
				_ = tool.Release()
			}
		}
	}()
	for n := range 12 {
		e := p.create(t, life)
		if _, err := life.Destroy(t.Context(), brokerapi.DestroyParams{Name: p.name, Purge: true}); err != nil {
			t.Errorf("destroy %d: %v", n, err)
		}
		p.gone(t, e)
	}
	close(end)
	<-ended
	t.Logf("%d tools were killed", killed.Load())
	if killed.Load() < 5 {
		t.Errorf("only %d tools were killed: the test has seen little", killed.Load())
	}
}

// children are this process's that run one of some programs.
func children(t *testing.T, programs ...string) (found []*os.Process) {
	t.Helper()
	all, err := filepath.Glob("/proc/self/task/[0-9]*/children")
	if err != nil {
		t.Error(err)
	}
	for _, path := range all {
		b, _ := os.ReadFile(path) // the thread may have ended
		for f := range strings.FieldsSeq(string(b)) {
			comm, _ := os.ReadFile("/proc/" + f + "/comm") // it may have ended
			pid, err := strconv.Atoi(f)
			if err != nil || !slices.Contains(programs, strings.TrimSpace(string(comm))) {
				continue
			}
			if process, err := os.FindProcess(pid); err == nil { // by a pidfd
				found = append(found, process)
			}
		}
	}
	return found
}
