package crash_test

import (
	"bytes"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// formatters finds the mke2fs that a broker has started. It ends soon, so that it has to be met among all that runs on
// a busy host: whoever is another's child is looked at once.
type formatters struct {
	broker int
	others map[string]bool
}

// pid is that of the one that runs, 0 if there is none.
func (f *formatters) pid() int {
	dir, err := os.Open("/proc")
	if err != nil {
		return 0
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // processes come and go
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' || f.others[name] {
			continue
		}
		b, _ := os.ReadFile("/proc/" + name + "/stat") // it may have ended
		at := bytes.LastIndexByte(b, ')')
		fields := bytes.Fields(b[at+1:])
		if at < 0 || len(fields) < 2 {
			continue
		}
		if string(fields[1]) != strconv.Itoa(f.broker) {
			f.others[name] = true
		} else if bytes.Contains(b[:at], []byte("(mke2fs")) && string(fields[0]) != "Z" {
			pid, _ := strconv.Atoi(name)
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
		formatter := formatters{broker, map[string]bool{}}
		formatter.pid() // knows who runs already
		key := fmt.Sprint("crk formatted ", i)
		done := make(chan result, 1)
		// Large enough to take a while; it holds next to nothing.
		go func() { done <- h.try("create", "--no-start", "--disk", "512GiB", key) }()
		var said result
		for hit := false; ; {
			select {
			case said = <-done:
			case <-tick.C:
				if pid := formatter.pid(); pid != 0 && !hit {
					hit = true
					<-time.After(time.Duration(r.IntN(longest)) * time.Millisecond)
					if formatter.pid() != pid {
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
		if pid := formatter.pid(); pid != 0 {
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
