package namespace

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// process is an attached command.
type process struct {
	link  *link
	id    id.Command
	pid   int
	files []*os.File

	once   sync.Once
	done   chan struct{} // closed once status and err are set
	status execapi.Status
	err    error
}

var _ runtime.Process = (*process)(nil)

func (p *process) finish(s execapi.Status, err error) {
	p.once.Do(func() {
		p.status, p.err = s, err
		close(p.done)
	})
}

func (p *process) Files() []*os.File { return p.files }
func (p *process) PID() int          { return p.pid }

func (p *process) Wait(ctx context.Context) (execapi.Status, error) {
	select {
	case <-p.done:
		return p.status, p.err
	case <-ctx.Done():
		return execapi.Status{}, context.Cause(ctx)
	}
}

// Close implements runtime.Process. It returns at once, and Wait returns at the command's end.
func (p *process) Close() error {
	select {
	case <-p.done:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := p.link.conn.Notify(ctx, execapi.MethodStopTask, execapi.StopTaskParams{ID: p.id, Hangup: true})
	if err != nil {
		select {
		case <-p.link.conn.Done(): // the executor hangs the command up by itself
			return nil
		default:
		}
		return fmt.Errorf("cannot hang up command %s: %w", p.id, err)
	}
	return nil
}
