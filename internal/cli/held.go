package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// heldEvery is how often up and down look who holds the user database while they work.
const heldEvery = time.Second

// sayHeld tells w that another program holds the user database, for which users are not made or removed,
// until the returned function is called.
func sayHeld(w io.Writer) (stop func()) {
	done := make(chan struct{})
	go func() {
		t := time.NewTicker(heldEvery)
		defer t.Stop()
		var last, said string
		for {
			select {
			case <-done:
				return
			case <-t.C:
			}
			// Seen twice: a tool at work has it for an instant only.
			if by := heldBy("/etc"); by == "" || by != last {
				last = by
			} else if by != said {
				said = by
				fmt.Fprintf(w, "carrel: waiting for %s, which holds the user database\n", by)
			}
		}
	}()
	return func() { close(done) }
}

// heldBy names the process that holds the user database of etc, "" if none does.
func heldBy(etc string) string {
	name := func(pid int) string {
		comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
		if err != nil {
			return "" // it has ended: the next tool takes the lock away
		}
		return fmt.Sprintf("process %d (%s)", pid, printable(strings.TrimSpace(string(comm))))
	}
	if fd, err := unix.Open(filepath.Join(etc, ".pwd.lock"), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0); err == nil {
		defer unix.Close(fd)
		l := unix.Flock_t{Type: unix.F_WRLCK}
		if unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l) == nil && l.Type != unix.F_UNLCK && l.Pid > 0 {
			return name(int(l.Pid))
		}
	}
	for _, db := range []string{"passwd", "shadow", "group", "gshadow", "subuid", "subgid"} {
		b, err := os.ReadFile(filepath.Join(etc, db+".lock"))
		if err != nil {
			continue
		}
		if pid, err := strconv.Atoi(strings.Trim(string(b), "\x00\n ")); err == nil && name(pid) != "" {
			return name(pid)
		}
	}
	return ""
}
