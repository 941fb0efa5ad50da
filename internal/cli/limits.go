package cli

import (
	"errors"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli/timearg"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// lifetime is a flag value: a duration, in days too, or "never".
type lifetime int64 // milliseconds; -1 is never

const never lifetime = -1

func (l *lifetime) String() string {
	switch *l {
	case 0:
		return ""
	case never:
		return "never"
	}
	return (time.Duration(*l) * time.Millisecond).String()
}

func (l *lifetime) Type() string { return "DURATION" }

func (l *lifetime) Set(text string) error {
	if text == "never" {
		*l = never
		return nil
	}
	d, err := timearg.ParseDays(text)
	if err != nil || d < time.Second {
		return errors.New("it is not a time of a second or more; give it as in 90s, 15m, 12h or 7d, or never")
	}
	*l = lifetime(d.Milliseconds())
	return nil
}

const requestIDUsage = "an id that you choose: asked again with the same id, nothing is done twice"

// limitFlags are the flags of what a workspace may use.
type limitFlags struct {
	memory, swap, disk size
	limits             carrelv1.Limits
	ttl, idle          lifetime
	request            string
}

func (l *limitFlags) add(f *pflag.FlagSet, defaults bool) {
	or := func(s string) string {
		if defaults {
			return " (default " + s + ")"
		}
		return ""
	}
	f.VarP(&l.memory, "memory", "m", "ceiling on memory, as in 512MiB"+or("1GiB"))
	f.Var(&l.swap, "swap", "swap that may be used beyond it"+or("none"))
	f.Int64Var(&l.limits.Pids, "pids", 0, "most processes and threads at once"+or("512"))
	f.Int64Var(&l.limits.CpuWeight, "cpu-weight", 0, "share of the processors under contention, 1 to 10000"+or("100"))
	f.Int64Var(&l.limits.OpenFiles, "open-files", 0, "most open files of a process"+or("4096"))
	f.Var(&l.disk, "disk",
		"what home and temporary directories may hold together, as in 10GiB; it can be raised later, not lowered or removed"+or("no limit"))
	f.Var(&l.ttl, "ttl", "destroy it after this time, its home kept aside, as in 12h or 7d"+or("never"))
	f.Var(&l.idle, "idle-timeout", "stop it when nothing has run in it for this time"+or("the daemon's idle_timeout, 60s"))
	f.StringVar(&l.request, "request-id", "", requestIDUsage)
}

func (l *limitFlags) asked() *carrelv1.Limits {
	l.limits.MemoryBytes, l.limits.SwapBytes, l.limits.DiskBytes = int64(l.memory), int64(l.swap), int64(l.disk)
	return &l.limits
}

// size is a flag value in bytes, as workspace.ParseSize has it.
type size int64

func (s *size) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*s), 10)
}

func (s *size) Type() string { return "SIZE" }

func (s *size) Set(text string) error {
	n, err := workspace.ParseSize(text)
	if err != nil {
		return err
	}
	*s = size(n)
	return nil
}

// bound is a flag value: how many there may be. 0 is refused, because it would be taken for no bound at all.
type bound int64

func (b *bound) String() string { return strconv.FormatInt(int64(*b), 10) }

func (b *bound) Type() string { return "N" }

func (b *bound) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return errors.New("it is not a whole number; give one such as 200, or leave it out for no bound")
	case n == 0:
		return errors.New("a bound of 0 would allow nothing; give 1 or more, or leave it out for no bound")
	}
	*b = bound(n)
	return nil
}
