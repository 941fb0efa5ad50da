package jobs

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// endRoom is what the end of a job takes at most, in bytes. It is reserved when the job begins: the disk may be full then.
const endRoom = 8 << 10

// startTime is how long a supervisor may take until the command runs.
const startTime = 45 * time.Second

// Names in the directory of a job.
const (
	specName    = "job.json"
	endName     = "end.json"
	lockName    = "lock"
	controlName = "control"
)

// Begin begins a job on this machine, and returns what holds it once the command runs. The job goes on when this process
// ends. After an error other than unavailable nothing runs and nothing is kept.
func (r *Registry) Begin(ctx context.Context, s Spec) (held string, err error) {
	if err := check(s); err != nil {
		return "", err
	}
	dir, lock, err := r.enter(ctx, s)
	if err != nil {
		return "", fmt.Errorf("cannot begin job %s: %w", s.ID, err)
	}
	defer dir.close()
	defer lock.Close()
	ready, theirs, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer ready.Close()
	own, err := unix.FcntlInt(uintptr(dir.fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		theirs.Close()
		return "", err
	}
	at := os.NewFile(uintptr(own), dir.path)
	c, err := r.program.Supervisor(stageName, lock, at, theirs)
	if err == nil {
		c.Env, c.SysProcAttr = variables(), &syscall.SysProcAttr{Setsid: true}
		err = c.Start()
	}
	_ = at.Close()
	_ = theirs.Close()
	if err != nil {
		return "", errors.Join(fmt.Errorf("cannot begin job %s: %w", s.ID, err), r.dir.remove(string(s.ID)))
	}
	go func() { _ = c.Wait() }() // it says how it ended in its directory
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })
	defer stop()
	_ = ready.SetReadDeadline(time.Now().Add(startTime))
	if ctx.Err() != nil {
		_ = ready.SetReadDeadline(time.Now())
	}
	var w begun
	line, err := bufio.NewReader(ready).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &w)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		_ = dir.order()
		return "", fmt.Errorf("cannot say whether job %s began: %w; it was told to end, see \"carrel job show %s\": %w", s.ID,
			context.Cause(ctx), s.ID, errdefs.ErrUnavailable)
	case err != nil:
		_ = dir.order()
		return "", fmt.Errorf("cannot say whether job %s began: its supervisor has ended or says nothing; see \"carrel job show %s\": %w",
			s.ID, s.ID, errdefs.ErrUnavailable)
	case w.Error != "":
		return "", errors.Join(fmt.Errorf("%s: %w", w.Error, errdefs.ErrFailedPrecondition), r.dir.remove(string(s.ID)))
	}
	return w.Held, nil
}

// begun is what a supervisor tells once, on one line.
type begun struct {
	Held  string `json:"held,omitempty"`
	Error string `json:"error,omitempty"`
}

// variables are those of this process that a command gets: see hostrun.
func variables() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return !slices.Contains([]string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ"}, name)
	})
}

// enter makes the directory of a job, durably, with its lock held. Before, the registry is tidied up.
func (r *Registry) enter(ctx context.Context, s Spec) (dir folder, lock *os.File, err error) {
	unlock, err := r.dir.lock(ctx)
	if err != nil {
		return dir, nil, err
	}
	defer unlock()
	if err := r.tidy(time.Now()); err != nil {
		return dir, nil, err
	}
	fresh, name := ".new-"+string(s.ID), string(s.ID)
	if err := unix.Mkdirat(r.dir.fd, fresh, 0o700); err != nil {
		return dir, nil, r.dir.wrong(fresh, err)
	}
	defer func() {
		if err != nil {
			if lock != nil {
				lock.Close()
			}
			err = errors.Join(err, r.dir.clear(fresh))
		}
	}()
	if dir, err = r.dir.sub(fresh); err != nil {
		return dir, nil, err
	}
	defer func() {
		if err != nil {
			dir.close()
		}
	}()
	if lock, err = dir.fill(s); err != nil {
		return dir, lock, err
	}
	if err = unix.Renameat2(r.dir.fd, fresh, r.dir.fd, name, unix.RENAME_NOREPLACE); err != nil {
		return dir, lock, r.dir.wrong(name, err)
	}
	dir.path = strings.TrimSuffix(dir.path, fresh) + name
	return dir, lock, unix.Fsync(r.dir.fd)
}

// fill makes the files of a new job, and returns the lock, held.
func (d folder) fill(s Spec) (lock *os.File, err error) {
	if lock, err = d.open(lockName, unix.O_RDWR|unix.O_CREAT); err != nil {
		return nil, err
	}
	if _, err = try(lock, unix.LOCK_EX); err != nil {
		return lock, d.wrong(lockName, err)
	}
	if s.Host == "" {
		if err = unix.Mkfifoat(d.fd, controlName, 0o600); err != nil {
			return lock, d.wrong(controlName, err)
		}
	}
	end, err := d.open(endName+".new", unix.O_WRONLY|unix.O_CREAT)
	if err == nil {
		_, err = end.Write(make([]byte, endRoom))
		err = errors.Join(err, end.Sync(), end.Close())
	}
	if err == nil {
		err = d.store(specName, s)
	}
	return lock, err
}

// try locks a file if nobody else has it.
func try(f *os.File, how int) (got bool, err error) {
	c, err := f.SyscallConn()
	if err != nil {
		return false, err
	}
	cerr := c.Control(func(fd uintptr) { err = unix.Flock(int(fd), how|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, cerr
	}
	return err == nil, errors.Join(err, cerr)
}

// tidy removes what was left half made, jobs that ended too long ago, and the oldest that have ended where there are too
// many. The caller holds the registry.
func (r *Registry) tidy(now time.Time) error {
	names, err := r.dir.names()
	if err != nil {
		return err
	}
	var kept []Job
	for _, n := range names {
		if strings.HasPrefix(n, ".new-") || strings.HasPrefix(n, ".gone-") {
			if err := r.dir.clear(n); err != nil {
				return err
			}
		}
		if _, err := id.ParseCommand(n); err != nil {
			continue
		}
		j, err := r.kept(id.Command(n))
		if err != nil {
			j.ID = id.Command(n) // it counts, and goes among the first
		}
		if j.State == "" {
			j.State = Lost
		}
		kept = append(kept, j)
	}
	slices.SortFunc(kept, func(a, b Job) int { return cmp.Or(a.last().Compare(b.last()), cmp.Compare(a.ID, b.ID)) })
	left := len(kept)
	for _, j := range kept {
		// Of one that cannot be read the age is not known.
		if !j.over(now) || left < MaxJobs && (j.last().IsZero() || now.Sub(j.last()) < MaxAge) {
			continue
		}
		if err := r.dir.remove(string(j.ID)); err != nil {
			return err
		}
		left--
	}
	if left >= MaxJobs {
		return fmt.Errorf("%d jobs run, or did when their hosts were asked, and at most %d may; see \"carrel job ls\", and stop one with "+
			"\"carrel job stop\": %w", left, MaxJobs, errdefs.ErrResourceExhausted)
	}
	return nil
}

// late is how long after its time a job may take to end, on a remote host with another clock.
const late = time.Hour

// over reports whether the job has ended, as far as that is known here.
func (j Job) over(now time.Time) bool {
	return j.State.Over() || j.State == Unknown && now.Sub(j.Began) > j.Limit()+late
}

// last is when something was known of the job last.
func (j Job) last() time.Time {
	if j.End != nil {
		return j.End.At
	}
	return j.Began
}
