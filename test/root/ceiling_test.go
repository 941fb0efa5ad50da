package root_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// honest takes 200 MB in one process, says so and goes on.
const honest = `open(my $z, "<", "/dev/zero"); sysread($z, my $x, 200 << 20) or die; open(my $f, ">", "there") or die; close $f; my $n = 0; while (1) { sleep 1 }`

// herd starts processes of 7 MB each, and starts another for each that is ended.
const herd = `$| = 1; my $end = time + 60; my %%kids;
while (time < $end) {
	if (keys %%kids < %d) {
		my $pid = fork; next if !defined $pid;
		if (!$pid) { my $x = "x" x (7 << 20); sleep 600; exit }
		$kids{$pid} = 1; next;
	}
	my $gone = waitpid(-1, 0); delete $kids{$gone};
}`

// Workspaces of one owner that fill the memory of all workspaces together lose their own processes, not the
// largest process of another owner who keeps within a share.
func TestTheCeilingMeetsWhoFillsIt(t *testing.T) {
	needRoot(t)
	h := newHostFor(t)
	path := h.data + "/broker.json"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]any{}
	if err := json.Unmarshal(b, &settings); err != nil {
		t.Fatal(err)
	}
	// A gigabyte for all, whatever the host has.
	settings["cgroup_memory_percent"] = max(1, int(100<<30/memoryOfTheHost(t)))
	if b, err = json.Marshal(settings); err != nil {
		t.Fatal(err)
	}
	if r := h.try(nil, "", append([]string{"down"}, h.flags()...)...); r.code != 0 {
		t.Fatal(r.err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	d := h.desk(t)
	d.detach(t, "/usr/bin/perl", "-e", honest)
	d.sh(t, "while [ ! -e there ]; do sleep 0.01; done")
	tenant := user(t, "crt-herd")
	const herds = 3
	key := func(i int) string { return fmt.Sprint("herd-", i) }
	ended := func() (n int64) {
		for i := range herds {
			n += h.oomKills(t, key(i))
		}
		return n
	}
	for i := range herds {
		if r := h.try(tenant, "", "create", key(i)); r.code != 0 {
			t.Fatal(r.err)
		}
	}
	for i := range herds {
		if r := h.try(tenant, "", "exec", "-d", key(i), "--", "/usr/bin/perl", "-e", fmt.Sprintf(herd, 130)); r.code != 0 {
			t.Fatal(r.err)
		}
	}
	until(t, "processes are ended", func() bool { return ended() > 0 || h.oomKills(t, d.Key) > 0 })
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && h.oomKills(t, d.Key) == 0; { // it goes on
		<-time.After(100 * time.Millisecond)
	}
	if n := h.oomKills(t, d.Key); n > 0 {
		log, _ := os.ReadFile(h.data + "/log/broker.log")
		t.Errorf("%d processes of the owner within a share are ended, and %d of who fills the memory\n%s", n, ended(), log)
	}
	d.well(t)
}

func memoryOfTheHost(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "MemTotal:")
	n, err := strconv.ParseInt(strings.TrimSpace(rest[:strings.Index(rest, "kB")]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// oomKills is how many processes of a workspace the kernel has ended for memory.
func (h *host) oomKills(t *testing.T, key string) int64 {
	t.Helper()
	var all []struct {
		Key      string
		OOMKills int64 `json:"oom_kills"`
	}
	if err := json.Unmarshal([]byte(h.carrel(t, "top", "-o", "json")), &all); err != nil {
		t.Fatal(err)
	}
	for _, w := range all {
		if w.Key == key {
			return w.OOMKills
		}
	}
	t.Fatalf("top has no %q: %+v", key, all)
	return 0
}
