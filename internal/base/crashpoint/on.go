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

// A file with the name of a point, in a directory that everybody may write, arms it. The file has
// the number of the pass at which the process ends. An executor, which cannot see the directory,
// gets its points when it starts.
const (
	dirEnv  = "CARREL_CRASHPOINTS"
	heldEnv = "CARREL_CRASHPOINTS_HELD"
	// lent is the prefix of the names of points in executors.
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

// Here marks a crash point.
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
		_ = os.WriteFile(path, []byte(strconv.Itoa(n-1)), 0o666) // the test notices a failure
		return
	}
	// If several processes come here at once, only one ends.
	if os.Remove(path) == nil {
		end(name)
	}
}

// end ends the process at once. PID 1 of a namespace ignores its own KILL; to all others exit_group
// looks the same. The line that it writes first tells a test of an executor's end.
func end(name string) {
	_, _ = syscall.Write(2, []byte("crashpoint "+name+"\n"))
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 137, 0, 0)
}

// Env returns the variables that a child needs for its own crash points.
func Env() []string {
	if dir == "" {
		return nil
	}
	return []string{dirEnv + "=" + dir}
}

// Lend is Env for an executor, which cannot see files of the host. A point that is passed on is no
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
