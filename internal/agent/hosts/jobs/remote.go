package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// BeginRemote begins a job on the remote host that it names. That it is to begin is durable here before. After an error of
// kind unavailable it may have begun.
func (r *Registry) BeginRemote(ctx context.Context, s Spec) error {
	if err := check(s); err != nil {
		return err
	}
	dir, lock, err := r.enter(ctx, s)
	if err != nil {
		return fmt.Errorf("cannot begin job %s: %w", s.ID, err)
	}
	defer dir.close()
	defer lock.Close()
	seconds := strconv.FormatInt((s.LimitMS+999)/1000, 10)
	if _, err = r.remote(ctx, s, "begin", append([]string{seconds}, s.Argv...)...); err == nil {
		return nil
	}
	never := errors.Is(err, ErrNotRun)
	if !never {
		text, aerr := r.remote(context.WithoutCancel(ctx), s, "state")
		never = aerr == nil && strings.TrimSpace(string(text)) == "missing"
	}
	if never {
		return errors.Join(fmt.Errorf("cannot begin job %s on %s: %w", s.ID, s.Host, err), r.dir.remove(string(s.ID)))
	}
	return fmt.Errorf("cannot say whether job %s began on %s: %w; see \"carrel job show %s\": %w", s.ID, s.Host, err, s.ID,
		errdefs.ErrUnavailable)
}

// remote runs a verb of the script.
func (r *Registry) remote(ctx context.Context, s Spec, verb string, args ...string) ([]byte, error) {
	if r.cfg.Shell == nil {
		return nil, fmt.Errorf("cannot ask %s: no remote host is reached here: %w", s.Host, errdefs.ErrUnavailable)
	}
	return r.cfg.Shell(ctx, s.Inventory, s.Host, append([]string{"/bin/sh", "-c", script, stageName, script, verb, string(s.ID)}, args...))
}

// ask asks the host of a job for its state. An end is kept, so that nobody need ask again.
func (r *Registry) ask(ctx context.Context, j Job) Job {
	text, err := r.remote(ctx, j.Spec, "state")
	if err != nil {
		j.State = Unknown
		j.Why = fmt.Sprintf("%s cannot be asked: %v; the job ran when it could be, at %s", j.Host, err, j.Seen.Format(time.RFC3339))
		return j
	}
	return r.learn(j, string(text))
}

// learn takes in what a host says of a job. It is another party's word.
func (r *Registry) learn(j Job, says string) Job {
	f := strings.Fields(says)
	word := ""
	if len(f) > 0 {
		word = f[0]
	}
	j.Why = ""
	switch {
	case word == "running" && len(f) == 1:
		j.State, j.Seen = Running, time.Now()
		if dir, err := r.open(j.ID); err == nil {
			// Where it cannot be noted, the time from before is told.
			_ = unix.UtimesNanoAt(dir.fd, lockName, nil, unix.AT_SYMLINK_NOFOLLOW)
			dir.close()
		}
		return j
	case word == "lost" && len(f) == 1:
		j.State, j.Why = Lost, "its supervisor on "+j.Host+" has ended without a word: it was killed, or the host was started anew; what is "+
			"left of the job can be ended with \"carrel job stop\""
		return j
	case word == "missing" && len(f) == 1:
		j.State, j.Why = Lost, "there is nothing of it on "+j.Host+": it did not begin, or was removed there"
		return j
	case word != "ended" || len(f) != 4:
		j.State, j.Why = Unknown, fmt.Sprintf("%s says what is no state: %.80q", j.Host, says)
		return j
	}
	code, err1 := strconv.Atoi(f[1])
	at, err2 := strconv.ParseInt(f[3], 10, 64)
	if err1 != nil || err2 != nil || code < 0 || code > 255 {
		j.State, j.Why = Unknown, fmt.Sprintf("%s says what is no end: %.80q", j.Host, says)
		return j
	}
	e := End{Code: code, Stopped: f[2] == "stopped", TimedOut: f[2] == "timeout", At: time.Unix(at, 0)}
	if e.At.Before(j.Began) || e.At.After(time.Now()) { // another clock
		e.At = time.Now()
	}
	if dir, err := r.open(j.ID); err == nil {
		// Where it cannot be kept, the host is asked once more.
		if f, err := dir.open(endName+".new", unix.O_WRONLY); err == nil {
			_ = dir.finish(f, endName, e)
		}
		dir.close()
	}
	j.end(&e)
	return j
}

func (r *Registry) remoteOutput(ctx context.Context, j Job, stream string, from int64) (Chunk, error) {
	text, err := r.remote(ctx, j.Spec, "output", stream, strconv.FormatInt(from, 10))
	if err != nil {
		return Chunk{}, fmt.Errorf("cannot read the output of job %s on %s: %w", j.ID, j.Host, err)
	}
	line, data, _ := bytes.Cut(text, []byte("\n"))
	at, err := strconv.ParseInt(string(line), 10, 64)
	if err != nil || at < from || len(data) > MaxChunk {
		return Chunk{}, fmt.Errorf("cannot read the output of job %s: %s says what is no output: %.80q: %w", j.ID, j.Host, line,
			errdefs.ErrUnavailable)
	}
	return Chunk{data, at}, nil
}

func (r *Registry) remoteStop(ctx context.Context, j Job) (Job, error) {
	if j.State == Unknown {
		return j, fmt.Errorf("cannot stop job %s: %s: %w", j.ID, j.Why, errdefs.ErrUnavailable)
	}
	if j.End != nil {
		return j, nil
	}
	text, err := r.remote(ctx, j.Spec, "stop")
	if err != nil {
		return j, fmt.Errorf("cannot stop job %s on %s: %w", j.ID, j.Host, err)
	}
	if j = r.learn(j, string(text)); j.State == Running || j.State == Unknown {
		return j, fmt.Errorf("cannot stop job %s on %s: it is %s there still; %s: %w", j.ID, j.Host, j.State, j.Why, errdefs.ErrUnavailable)
	}
	return j, nil
}

func (r *Registry) remoteRemove(ctx context.Context, j Job) error {
	if _, err := r.remote(ctx, j.Spec, "remove"); err != nil {
		return fmt.Errorf("cannot remove job %s from %s: %w", j.ID, j.Host, err)
	}
	return nil
}
