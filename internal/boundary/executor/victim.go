package executor

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/oom"
)

// victim has commands born with the value by which the kernel ends them before their executor, and
// before whatever else the host runs. A process gets it by inheritance alone: what is written for it
// later, its own children may have missed.
type victim struct {
	fd int // oom_score_adj of this process, open for writing; -1: it is left alone
}

var asCommandScore, asExecutorScore = []byte(strconv.Itoa(oom.Command)), []byte(strconv.Itoa(oom.Executor))

// openVictim is for an executor whose own value the broker set. Without root nobody did.
func openVictim(spec *sandbox.Spec) (v victim, err error) {
	v.fd = -1
	if spec.Mode == sandbox.Rootful {
		v.fd, err = unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	}
	return v, err
}

// born gives this process a command's value while one is forked, and its own again after that.
func (v victim) born(on bool) error {
	if v.fd < 0 {
		return nil
	}
	score := asExecutorScore
	if on {
		score = asCommandScore
	}
	_, err := unix.Pwrite(v.fd, score, 0)
	return err
}
