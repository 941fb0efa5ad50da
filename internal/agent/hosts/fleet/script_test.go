package fleet_test

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
)

// reads has a shell read a script, and returns its output.
func reads(t *testing.T, shell []string, script []byte, leader bool) string {
	t.Helper()
	cmd := exec.Command(shell[0], shell[1:]...)
	cmd.Stdin = bytes.NewReader(script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: leader}
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", shell, err)
	}
	return strings.TrimSpace(string(b))
}

// runs has a shell read the script of a step, lets it go once it says that it begins, and returns all of the output.
func runs(t *testing.T, shell []string, script []byte, leader bool) string {
	t.Helper()
	cmd := exec.Command(shell[0], shell[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: leader}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Write(script)
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	if err != nil {
		t.Errorf("%v: %q, %v", shell, line, err)
	}
	io.WriteString(in, "go\n")
	in.Close()
	rest, err := io.ReadAll(r)
	if err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %v", shell, err)
	}
	return strings.TrimSpace(line + string(rest))
}

// started returns field 22 of a process's stat.
func started(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.Fields(rest)[19]
}

// The kill ends the group that began then, in every shell, and no other that has its number now.
func TestKillScript(t *testing.T) {
	for _, sh := range present(t) {
		cmd := exec.Command("sleep", "300")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		pid := cmd.Process.Pid
		when := started(t, pid)
		if got := reads(t, sh, fleet.KillScript("MARK", pid, when+"0", time.Second), true); got != "MARK gone" {
			t.Errorf("%v: %s", sh, got)
		}
		if err := syscall.Kill(pid, 0); err != nil {
			t.Errorf("%v: another process with the number was killed: %v", sh, err)
		}
		if got := reads(t, sh, fleet.KillScript("MARK", pid, when, time.Second), true); got != "MARK gone" {
			t.Errorf("%v: %s", sh, got)
		}
		<-ended
		if got := reads(t, sh, fleet.KillScript("MARK", pid, when, time.Second), true); got != "MARK gone" {
			t.Errorf("%v: %s", sh, got)
		}
	}
}

// Every process of the group has the chance to end by itself.
func TestKillScriptTells(t *testing.T) {
	told, up := filepath.Join(t.TempDir(), "told"), fifo(t)
	const child = `sh -c 'trap "echo x >$0; exit" TERM; echo up >"$1"; while :; do sleep 0.1; done' "$0" "$1" & wait`
	cmd := exec.Command("sh", "-c", child, told, up)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go cmd.Wait()
	heard(t, up)
	pid := cmd.Process.Pid
	if got := reads(t, []string{"sh"}, fleet.KillScript("MARK", pid, started(t, pid), 10*time.Second), true); got != "MARK gone" {
		t.Error(got)
	}
	if _, err := os.Stat(told); err != nil {
		t.Errorf("a child was killed without a word: %v", err)
	}
}

// Half of a script does nothing, wherever it is cut.
func TestScriptCut(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	script := fleet.Script(fleet.Step{Argv: []string{"touch", ran}}, fleet.Host{Name: "h", Address: "h"}, "MARK")
	for _, sh := range present(t) {
		for i := 0; i < len(script)-2; i += 7 {
			cmd := exec.Command(sh[0], sh[1:]...)
			cmd.Stdin = bytes.NewReader(script[:i])
			out, _ := cmd.Output() // most shells call it an error
			if _, err := os.Stat(ran); err == nil || bytes.Contains(out, []byte("MARK")) {
				t.Fatalf("%v ran %q", sh, script[:i])
			}
		}
		// Nor does all of it, if the line by which it goes does not come.
		for _, more := range []string{"", "\n", "g", "stop\n"} {
			cmd := exec.Command(sh[0], sh[1:]...)
			cmd.Stdin = strings.NewReader(string(script) + more)
			out, err := cmd.Output()
			if _, did := os.Stat(ran); err == nil || did == nil || !bytes.Contains(out, []byte("MARK run")) {
				t.Fatalf("%v ran it after %q: %q, %v", sh, more, out, err)
			}
		}
		runs(t, sh, script, true)
		if _, err := os.Stat(ran); err != nil {
			t.Errorf("%v: %v", sh, err)
		}
		os.Remove(ran)
	}
}

// A step leads a process group, whether the server gave it one or not.
func TestScriptGroup(t *testing.T) {
	s := fleet.Step{Shell: true, ShellText: "echo $$ $(ps -o pgid= -p $$ 2>/dev/null || cut -d' ' -f5 /proc/$$/stat)"}
	for _, sh := range present(t) {
		for _, leader := range []bool{true, false} {
			got := strings.Fields(runs(t, sh, fleet.Script(s, fleet.Host{Name: "h", Address: "h"}, "MARK"), leader))
			if len(got) != 6 || got[0] != "MARK" || got[1] != "run" || got[4] != got[2] || got[5] != got[2] {
				t.Errorf("%v, %v: %v", sh, leader, got)
			}
		}
	}
}

// What is kept is the first half of the limit and the last, however the output comes.
func TestOutput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 40).Draw(t, "limit")
		pieces := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 60), 0, 8).Draw(t, "pieces")
		all := bytes.Join(pieces, nil)
		o := fleet.Keep(limit, pieces)
		head, tail := all, []byte(nil)
		if len(all) > limit {
			head, tail = all[:limit/2], all[len(all)-(limit-limit/2):]
		}
		if !bytes.Equal(o.Head, head) || !bytes.Equal(o.Tail, tail) || o.Dropped != int64(len(all)-len(head)-len(tail)) {
			t.Fatalf("of %q: %q, %q, %d", all, o.Head, o.Tail, o.Dropped)
		}
	})
}

// The mark is found however the pieces are cut, and what comes before it is bounded.
func TestMark(t *testing.T) {
	const mark = "carrel-MARK"
	rapid.Check(t, func(t *rapid.T) {
		noise := rapid.SampledFrom([]string{"", "x", "carrel-", "carrel-MAR\n", "\n\n", strings.Repeat("n", 60000)}).Draw(t, "noise")
		text := noise + mark + " run 5 6\n" + "out" + mark + "\nput"
		var pieces [][]byte
		for rest := text; rest != ""; {
			n := min(len(rest), rapid.SampledFrom([]int{1, 2, 5, 11, 30000}).Draw(t, "n"))
			if n < 11 && len(rest) > 100 {
				n = len(rest) - 100
			}
			pieces, rest = append(pieces, []byte(rest[:n])), rest[n:]
		}
		found, says, before, o := fleet.Split(mark, 1000, pieces)
		if !found || says != " run 5 6" || before != noise || string(o.Head) != "out"+mark+"\nput" {
			t.Fatalf("%v %q %.100q %q", found, says, before, o.Head)
		}
	})
	found, _, before, o := fleet.Split(mark, 1000, [][]byte{make([]byte, 1<<20), []byte(mark + "\n"), make([]byte, 1<<20)})
	if found || len(before) > 70000 || len(o.Head) != 0 {
		t.Errorf("%v, %d, %d", found, len(before), len(o.Head))
	}
}
