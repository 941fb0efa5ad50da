package cli_test

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli"
)

// When a question expires is said in local time, with the date unless it is today's. Questions about the
// same action have the daemon's digest of it.
func TestItemOfApproval(t *testing.T) {
	far := time.Now().Add(50 * time.Hour)
	m := &carrelv1.Approval{
		Id: "ap-1", State: "pending", Key: "demo", Argv: []string{"rm", "a\tb\x1b[2J", "界"}, ActionDigest: "sha256:1",
		UntilUnixMs: far.UnixMilli(),
	}
	i := cli.ItemOf(m)
	if want := far.Format("2006-01-02 15:04:05"); i.Until != want || !strings.Contains(i.Details, "Expires at "+want+".") {
		t.Errorf("%q is not %q, or not in:\n%s", i.Until, want, i.Details)
	}
	if i.Digest != "sha256:1" || !i.Pending || !strings.Contains(i.Details, `rm $'a\x09b\x1b[2J' '界'`) {
		t.Errorf("%+v", i)
	}
	for range 2 { // again if midnight was between
		soon := time.Now()
		m.UntilUnixMs = soon.UnixMilli()
		i = cli.ItemOf(m)
		if i.Until == soon.Format("15:04:05") {
			return
		}
	}
	t.Errorf("today: %q", i.Until)
}

// q leaves top as it leaves the watch: other keys do not, none is shown, and the terminal is as it was.
func TestTopEndsWithQ(t *testing.T) {
	serve(t, alice)
	master, slave := openTerminal(t)
	fd := int(slave.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	code := make(chan int, 1)
	go func() {
		code <- cli.Run([]string{"top", "--interval", "100ms"}, cli.Streams{In: slave, Out: slave, Err: slave})
	}()
	var seen strings.Builder
	buf := make([]byte, 4096)
	until := func(n int) {
		t.Helper()
		for strings.Count(seen.String(), "MEMORY") < n {
			got, err := master.Read(buf)
			if err != nil {
				t.Fatalf("%v after %q", err, seen.String())
			}
			seen.Write(buf[:got])
		}
	}
	until(1)
	if _, err := master.WriteString("x\rQZ"); err != nil {
		t.Fatal(err)
	}
	until(4)
	if strings.Contains(seen.String(), "QZ") {
		t.Errorf("a key is shown: %q", seen.String())
	}
	if _, err := master.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	select {
	case c := <-code:
		if c != 0 {
			t.Errorf("exit code %d: %q", c, seen.String())
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	after, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is %+v and was %+v (%v)", after, before, err)
	}
}
