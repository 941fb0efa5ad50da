package root_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// With a core_pattern that pipes, the kernel starts a program as root of the host for a process that
// crashes. No crash inside may do that, whatever a command does to its limits.
func TestACrashStartsNothingOnTheHost(t *testing.T) {
	d := shared.desk(t)
	limits := d.sh(t, strings.NewReplacer("PRLIMIT", strconv.Itoa(unix.SYS_PRLIMIT64), "SETRLIMIT", strconv.Itoa(unix.SYS_SETRLIMIT)).Replace(
		`ulimit -Sc 0; ulimit -Hc 0; ulimit -c unlimited; ulimit -c 0; grep core /proc/self/limits; /usr/bin/perl -e '
			my $old = pack("QQ", 7, 7); my $new = pack("QQ", 0, 0);
			syscall(PRLIMIT, 0, 4, $new, 0); syscall(SETRLIMIT, 4, $new); syscall(PRLIMIT, $$, 4, $new, 0); syscall(PRLIMIT, 0, 4, $new, $old);
			syscall(PRLIMIT, 0, 4, 0, $old); print "get ", join(",", unpack("QQ", $old)), "\n"'`))
	t.Logf("limits after attempts to change them: %s", limits)
	if !strings.Contains(limits, "get 1,1") {
		t.Errorf("a command can change its limit of core files: %s", limits)
	}
	pattern := "/proc/sys/kernel/core_pattern"
	// Other programs of the host could crash meanwhile.
	if os.Getenv("CARREL_TEST_CGROUP") == "" && os.Getenv("CARREL_TEST_CORE_PATTERN") == "" {
		t.Skip("the rest is skipped: it sets core_pattern of the host for a second; set CARREL_TEST_CORE_PATTERN=1")
	}
	was, err := os.ReadFile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	handler, started := filepath.Join(dir, "handler"), filepath.Join(dir, "started")
	script := fmt.Sprintf("#!/bin/sh\n/bin/cat > /dev/null\necho $1 >> %s\n", started)
	if err := os.WriteFile(handler, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pattern, []byte("|"+handler+" %e"), 0); err != nil {
		t.Skipf("the rest is skipped: core_pattern cannot be set here: %v", err)
	}
	defer func() {
		if err := os.WriteFile(pattern, was, 0); err != nil {
			t.Errorf("core_pattern is not %q again: %v", was, err)
		}
	}()
	crash := func(name string) []string {
		return []string{"/bin/sh", "-c", `ulimit -c 0; exec /usr/bin/perl -e '$0 = "` + name + `"; kill "SEGV", $$; sleep 10'`}
	}
	seen := func(name string) int {
		b, _ := os.ReadFile(started) // not there before the first
		return strings.Count(string(b), name+"\n")
	}
	if r := d.try(crash("crt-inside")...); r.code != 128+int(unix.SIGSEGV) {
		t.Errorf("the crash inside: %+v", r)
	}
	// The same outside shows that the handler works, and comes after what the one inside started.
	argv := crash("crt-outside")
	if err := exec.Command(argv[0], argv[1:]...).Run(); err == nil {
		t.Error("the crash outside succeeded")
	}
	until(t, "the host's handler runs for a crash outside", func() bool { return seen("crt-outside") > 0 })
	if n := seen("crt-inside"); n > 0 {
		t.Errorf("a crash inside started the host's handler %d times", n)
	}
}
