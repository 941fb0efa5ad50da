package audit_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

// crashSize makes a file full after about twenty records, so that many kills happen during a
// rotation.
const crashSize = 8 << 10

// crashChild appends until it is killed and prints each number once it is
// acknowledged. It never returns.
func crashChild(dir string) {
	l, err := audit.Open(context.Background(), audit.Options{Path: filepath.Join(dir, "audit.jsonl"), MaxSize: crashSize, Room: 1 << 20})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var mu sync.Mutex
	for range 4 {
		go func() {
			for i := 0; ; i++ {
				seq, err := l.Append(context.Background(), intent(i))
				if err == nil {
					err = l.AppendAsync(audit.Record{Type: audit.Outcome, Intent: seq, Status: audit.StatusOK})
				}
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Println(seq)
				mu.Unlock()
			}
		}()
	}
	select {}
}

// A process that is killed at random moments loses nothing that it acknowledged,
// and its chain holds after each reopening.
func TestKillLosesNothingAcknowledged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	path := filepath.Join(dir, "audit.jsonl")
	seed := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	var acknowledged int64
	for range 12 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "AUDIT_TEST_CRASH_DIR="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Killed after a number of acknowledgements, not after a time.
		left := 1 + seed.IntN(400)
		s := bufio.NewScanner(out)
		for s.Scan() {
			var seq int64
			fmt.Sscan(s.Text(), &seq)
			acknowledged = max(acknowledged, seq)
			if left--; left == 0 {
				cmd.Process.Kill()
			}
		}
		cmd.Wait()
		l := open(t, audit.Options{Path: path, MaxSize: crashSize, Room: 1 << 20})
		if got := l.Head().Seq; got < acknowledged {
			t.Fatalf("record %d was acknowledged, and the log ends at %d", acknowledged, got)
		}
		if v, err := l.Verify(t.Context()); err != nil || v.Bad != nil {
			t.Fatalf("after a kill: %+v %v", v.Bad, err)
		}
		acknowledged = l.Head().Seq
		l.Close()
	}
}
