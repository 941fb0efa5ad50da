package compose_test

import (
	"context"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// packedDouble stands for the archiver at work: a home is a few bytes, whichever it is.
type packedDouble struct {
	files []*os.File
	ended chan struct{}
}

// home is what the archive of a home is in these tests.
const home = "a home\n"

// archiverDouble starts one. Its files are those of an attached command: the stream, and the
// reports. What it verifies it says verdict of, unless that is "". What it packs goes on
// with what comes by more, unless that is nil.
func archiverDouble(p execapi.ExecParams, verdict string, more <-chan []byte) (runtime.Process, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	told, tells, err := pair()
	if err != nil {
		return nil, err
	}
	packs := slices.Contains(p.Argv, "pack")
	if verdict == "" || !slices.Contains(p.Argv, "verify") {
		verdict = `{"summary":{"entries":1,"bytes":7}}`
	}
	d := &packedDouble{files: []*os.File{ours, told}, ended: make(chan struct{})}
	go func() {
		defer close(d.ended)
		defer tells.Close()
		defer theirs.Close()
		if packs {
			_, err = theirs.WriteString(home)
			for err == nil && more != nil {
				var n int
				if n, err = theirs.Write(<-more); n == 0 {
					break
				}
			}
		} else {
			_, err = io.Copy(io.Discard, theirs)
		}
		if err == nil {
			_, _ = tells.WriteString(verdict + "\n") // who has gone does not hear it
		}
	}()
	return d, nil
}

// pair returns the two ends of a stream, of which one is handed over as it is.
func pair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}

func (d *packedDouble) Files() []*os.File { return d.files }
func (d *packedDouble) PID() int          { return 3 }
func (d *packedDouble) Close() error      { return nil }

func (d *packedDouble) Wait(ctx context.Context) (execapi.Status, error) {
	select {
	case <-d.ended:
		return execapi.Status{}, nil
	case <-ctx.Done():
		return execapi.Status{}, ctx.Err()
	}
}
