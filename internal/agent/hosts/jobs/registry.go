package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// open opens the directory of a job.
func (r *Registry) open(job id.Command) (folder, error) {
	if _, err := id.ParseCommand(string(job)); err != nil {
		return folder{}, fmt.Errorf("cannot use %q as the id of a job: it must look like \"c-0123456789abcdef\"; "+
			"\"carrel job ls\" lists them: %w", string(job), errdefs.ErrInvalidArgument)
	}
	d, err := r.dir.sub(string(job))
	if errors.Is(err, fs.ErrNotExist) {
		return d, notFound(job)
	}
	if err != nil {
		return d, fmt.Errorf("cannot use job %s: %w", job, err)
	}
	return d, nil
}

// kept is what the directory of a job says. A job on a remote host without an end is in state Unknown.
func (r *Registry) kept(job id.Command) (j Job, err error) {
	dir, err := r.open(job)
	if err != nil {
		return j, err
	}
	defer dir.close()
	runs, err := dir.held()
	if runs {
		j.State = Running // also if the rest cannot be read
	}
	if err == nil {
		err = dir.load(specName, &j.Spec)
	}
	if err != nil {
		return j, fmt.Errorf("cannot use job %s: %w; remove it with \"carrel job rm %s\"", job, err, job)
	}
	j.ID = job
	// Read after the lock was looked at: what holds the lock writes the end before it lets go.
	var e End
	switch err := dir.load(endName, &e); {
	case err == nil:
		j.end(&e)
	case !errors.Is(err, fs.ErrNotExist):
		return j, fmt.Errorf("cannot use job %s: %w", job, err)
	case runs:
	case j.Host != "":
		j.State, j.Why, j.Seen = Unknown, "the host was not asked", dir.seen()
	default:
		j.State, j.Why = Lost, "its supervisor has ended without a word: it was killed, or the machine was started anew; how the command "+
			"ended is not known"
	}
	return j, nil
}

// seen is when the lock was changed last.
func (d folder) seen() time.Time {
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, lockName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return time.Time{}
	}
	return time.Unix(st.Mtim.Unix())
}

// end sets the state by an end.
func (j *Job) end(e *End) {
	j.End = e
	switch {
	case e.Error != "":
		j.State, j.Why = Lost, e.Error
	case e.Stopped:
		j.State = Stopped
	case e.TimedOut:
		j.State = TimedOut
	default:
		j.State = Exited
	}
}

// held reports whether somebody holds the lock of a job.
func (d folder) held() (bool, error) {
	f, err := d.regular(lockName)
	if err != nil {
		return false, err
	}
	defer f.Close()
	got, err := try(f, unix.LOCK_SH)
	return !got && err == nil, err
}

// Show returns a job. That of a remote host is asked for there.
func (r *Registry) Show(ctx context.Context, job id.Command) (Job, error) {
	j, err := r.kept(job)
	if err == nil && j.State == Unknown {
		j = r.ask(ctx, j)
	}
	return j, err
}

// Known returns all jobs as they are known here, the newest first. No host is asked. broken are why others cannot be read.
func (r *Registry) Known() (all []Job, broken []error, err error) {
	names, err := r.dir.names()
	if err != nil {
		return nil, nil, err
	}
	for _, n := range names {
		job, err := id.ParseCommand(n)
		if err != nil {
			continue
		}
		j, err := r.kept(job)
		switch {
		case errdefs.IsNotFound(err): // removed meanwhile
		case err != nil:
			broken = append(broken, err)
		default:
			all = append(all, j)
		}
	}
	slices.SortFunc(all, func(a, b Job) int { return cmp.Or(b.Began.Compare(a.Began), cmp.Compare(a.ID, b.ID)) })
	return all, broken, nil
}

// forks is how many remote hosts are asked at once.
const forks = 8

// List is Known, with jobs on remote hosts asked for there.
func (r *Registry) List(ctx context.Context) (all []Job, broken []error, err error) {
	all, broken, err = r.Known()
	slots, done := make(chan struct{}, forks), make(chan struct{})
	asked := 0
	for i := range all {
		if all[i].State != Unknown {
			continue
		}
		asked++
		go func() {
			slots <- struct{}{}
			all[i] = r.ask(ctx, all[i])
			<-slots
			done <- struct{}{}
		}()
	}
	for range asked {
		<-done
	}
	return all, broken, err
}

// Output reads a stream of a job from an offset on. The chunk is empty at the end of what there is.
func (r *Registry) Output(ctx context.Context, j Job, stream string, from int64) (Chunk, error) {
	if stream != Stdout && stream != Stderr || from < 0 {
		return Chunk{}, fmt.Errorf("cannot read the output of job %s: there are %s and %s, from 0 on: %w", j.ID, Stdout, Stderr,
			errdefs.ErrInvalidArgument)
	}
	if j.Host != "" {
		return r.remoteOutput(ctx, j, stream, from)
	}
	dir, err := r.open(j.ID)
	if err != nil {
		return Chunk{}, err
	}
	defer dir.close()
	return dir.chunk(stream, from)
}

// pause is the time between two looks at a job that is waited for.
const pause = 100 * time.Millisecond

// Stop ends a job, and returns it once it has ended. One that has ended stays as it is.
func (r *Registry) Stop(ctx context.Context, job id.Command) (Job, error) {
	j, err := r.Show(ctx, job)
	if err != nil {
		return j, err
	}
	if j.Host != "" {
		return r.remoteStop(ctx, j)
	}
	if j.State != Running {
		return j, nil
	}
	dir, err := r.open(job)
	if err != nil {
		return j, err
	}
	defer dir.close()
	again := time.NewTicker(pause)
	defer again.Stop()
	told := false
	for {
		// A supervisor that has just begun may not listen yet.
		if !told {
			err := dir.order()
			if told = err == nil; err != nil && !errors.Is(err, unix.ENXIO) {
				return j, fmt.Errorf("cannot stop job %s: %w", job, err)
			}
		}
		if j, err = r.kept(job); err != nil || j.State != Running {
			return j, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return j, fmt.Errorf("cannot say whether job %s has ended: %w; see \"carrel job show %s\"", job, context.Cause(ctx), job)
		}
	}
}

// Remove removes a job that has ended, on its remote host too.
func (r *Registry) Remove(ctx context.Context, job id.Command) error {
	j, err := r.Show(ctx, job)
	switch {
	case errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err):
		return err
	case j.State == Running:
		return fmt.Errorf("cannot remove job %s: it runs; stop it first with \"carrel job stop %s\": %w", job, job, errdefs.ErrFailedPrecondition)
	case err == nil && j.State == Unknown:
		return fmt.Errorf("cannot remove job %s: it may run, and its host cannot be asked: %s; try again when it can: %w", job, j.Why,
			errdefs.ErrUnavailable)
	case err == nil && j.Host != "":
		if err := r.remoteRemove(ctx, j); err != nil {
			return err
		}
	}
	unlock, err := r.dir.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.dir.remove(string(job)); errors.Is(err, fs.ErrNotExist) {
		return notFound(job)
	} else if err != nil {
		return fmt.Errorf("cannot remove job %s: %w", job, err)
	}
	return nil
}
