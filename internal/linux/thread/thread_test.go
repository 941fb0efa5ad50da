package thread_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/thread"
)

// The thread's name is an example of its state: no thread of the process may have the name
// afterwards, least of all the first, which cannot end.
func TestThrowaway(t *testing.T) {
	const mark = "carrel-thrown"
	sentinel := errors.New("as f says")
	for range 200 {
		var tid int
		err := thread.Throwaway(func() error {
			tid = unix.Gettid()
			if err := os.WriteFile("/proc/thread-self/comm", []byte(mark), 0); err != nil {
				return err
			}
			if got := comm(t, tid); got != mark+"\n" {
				t.Errorf("the thread is called %q", got)
			}
			return sentinel
		})
		if !errors.Is(err, sentinel) {
			t.Fatalf("error %v", err)
		}
		if tid == os.Getpid() {
			t.Fatal("it ran on the first thread")
		}
	}
	// The last ones may still be ending.
	for end := time.Now().Add(30 * time.Second); marked(t, mark) > 0; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d threads live on with what f did to them", marked(t, mark))
		}
	}
}

// marked is how many threads have a name.
func marked(t *testing.T, mark string) (n int) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, th := range threads {
		b, err := os.ReadFile("/proc/self/task/" + th.Name() + "/comm")
		if err == nil && string(b) == mark+"\n" {
			n++
		}
	}
	return n
}

func comm(t *testing.T, tid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/comm", tid))
	if err != nil {
		t.Error(err)
	}
	return string(b)
}
