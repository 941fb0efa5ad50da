package crash_test

import (
	"bytes"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// formatter returns the pid of the mke2fs that a broker has started, 0 if there is none.
func formatter(broker int) int {
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range all {
		b, _ := os.ReadFile(f) // it may have ended
		if !bytes.Contains(b, []byte("(mke2fs) ")) {
			continue
		}
		_, rest, _ := strings.Cut(string(b), "(mke2fs) ")
		if w := strings.Fields(rest); len(w) > 1 && w[1] == strconv.Itoa(broker) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			return pid
		}
	}
	return 0
}

// mke2fs, and the broker above it, killed at random while it is at work: a create that
// fails says why and leaves nothing, and the next one succeeds.
func TestKilledFormatter(t *testing.T) {
	needImages(t)
	t.Parallel() // each mke2fs takes its time
	h := newHostUp(t)
	r := mrand.New(mrand.NewPCG(seed(t), 0))
	hits := map[string]int{}
	longest := 30 // milliseconds from its start to the kill; less on a host where it ends sooner
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := range 60 {
		victim := []string{"mke2fs", "broker"}[i%2]
		if hits[victim] >= 4 {
			continue
		}
		broker, err := h.part("broker")
		must(t, err)
		key := fmt.Sprint("crk formatted ", i)
		done := make(chan result, 1)
		// Large enough to take a while; it holds next to nothing.
		go func() { done <- h.try("create", "--no-start", "--disk", "512GiB", key) }()
		var said result
		for hit := false; ; {
			select {
			case said = <-done:
			case <-tick.C:
				if pid := formatter(broker); pid != 0 && !hit {
					hit = true
					<-time.After(time.Duration(r.IntN(longest)) * time.Millisecond)
					if formatter(broker) != pid {
						longest = max(longest*3/4, 1) // then at once
					} else {
						target := pid
						if victim == "broker" {
							target = broker
						}
						if unix.Kill(target, unix.SIGKILL) == nil {
							hits[victim]++
						}
					}
				}
				continue
			}
			break
		}
		if said.code != 0 && victim == "mke2fs" && !strings.Contains(said.err, "mke2fs failed: signal: killed") {
			t.Errorf("create says: %v", said)
		}
		h.up(t)
		h.settled(t)
		h.look(t, check.Expect{Any: true}, check.Lost) // the database can wait for the client
		if pid := formatter(broker); pid != 0 {
			t.Errorf("mke2fs %d outlives its broker", pid)
		}
		h.carrel(t, "create", "--disk", "512GiB", key)
		h.carrel(t, "destroy", "--purge", key)
		h.settled(t)
		h.look(t, check.Expect{})
	}
	t.Logf("killed while it was at work: %v", hits)
	if hits["mke2fs"] < 3 || hits["broker"] < 3 {
		t.Errorf("too few were killed at work to have seen anything: %v", hits)
	}
	h.gone(t)
}
