//go:build crashpoints

package crashpoint

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// A place is armed by a file of its name in a directory that everybody may write. The
// file holds how often it is passed until the process ends there. An executor, which
// cannot see the directory, is told when it starts.
const (
	dirEnv  = "CARREL_CRASHPOINTS"
	heldEnv = "CARREL_CRASHPOINTS_HELD"
	// lent is what names of places in executors begin with.
	lent = "executor."
)

var (
	dir = os.Getenv(dirEnv)

	mu   sync.Mutex
	held = parse(os.Getenv(heldEnv))
)

func parse(list string) map[string]int {
	m := map[string]int{}
	for item := range strings.FieldsSeq(list) {
		name, n, _ := strings.Cut(item, "=")
		if count, err := strconv.Atoi(n); err == nil {
			m[name] = count
		}
	}
	return m
}

// Here is a place that a crash may come at.
func Here(name string) {
	mu.Lock()
	defer mu.Unlock()
	if n := held[name]; n > 0 {
		if held[name] = n - 1; n == 1 {
			end(name)
		}
	}
	if dir == "" {
		return
	}
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return
	}
	if n > 1 {
		_ = os.WriteFile(path, []byte(strconv.Itoa(n-1)), 0o666) // the test sees what became of it
		return
	}
	// Of several processes that come here at once, one ends.
	if os.Remove(path) == nil {
		end(name)
	}
}

// end ends the process at once. The first of a process namespace takes no KILL from
// itself; for the rest of the world leaving the group of threads is the same. What it
// says first is how a test learns of an executor's end.
func end(name string) {
	_, _ = syscall.Write(2, []byte("crashpoint "+name+"\n"))
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 137, 0, 0)
}

// Env is what a child's environment must hold for its own places.
func Env() []string {
	if dir == "" {
		return nil
	}
	return []string{dirEnv + "=" + dir}
}

// Lend is Env for an executor, which sees no file of the host. What is handed on is no
// longer armed here.
func Lend() []string {
	if dir == "" {
		return nil
	}
	found, _ := filepath.Glob(filepath.Join(dir, lent+"*"))
	var list []string
	for _, path := range found {
		b, err := os.ReadFile(path)
		if err == nil && os.Remove(path) == nil {
			list = append(list, filepath.Base(path)+"="+strings.TrimSpace(string(b)))
		}
	}
	if list == nil {
		return nil
	}
	return []string{heldEnv + "=" + strings.Join(list, " ")}
}
