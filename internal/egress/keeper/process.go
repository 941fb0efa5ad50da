package keeper

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Starter starts carrel-egress for one workspace.
type Starter interface {
	// Start starts a process. It returns by the end of ctx, which does not end the process. The process before has
	// ended, or is ended by this.
	Start(ctx context.Context) (*Process, error)
	// Close is called once, when no other process will be started.
	Close()
}

// Process is a carrel-egress that a Starter has started. Its functions may be called at any time.
type Process struct {
	// Control is the near end of its control socket. It becomes the Keeper's.
	Control *net.UnixConn
	// PID is 0 if it is not known.
	PID int
	// Kill ends the process at once, or at least Control, so that reading it ends.
	Kill func()
	// Wait returns when the process has ended. It is called once, after the end of Control. The error says how it
	// ended, nil if that is not known.
	Wait func() error
}

// process is one carrel-egress, and what it says.
type process struct {
	*Process
	began   time.Time
	version int        // of the last Setup that it serves by
	ready   chan error // what it answered to the last Setup
	asking  *asking
	leases  *leases
	listing *listing
	begun   begun
	serves  atomic.Bool // it has served by a Setup
	told    atomic.Bool // it is to end
	writing sync.Mutex  // of Control
	ended   chan struct{}
	err     error // of the end, once ended is closed
}

// encode returns the line of a Setup.
func encode(s egressapi.Setup) ([]byte, error) {
	s.SetVersion()
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if len(b) >= egressapi.MaxSetup {
		return nil, fmt.Errorf("cannot use so many rules and secrets: they take %d bytes, at most %d: %w",
			len(b), egressapi.MaxSetup, errdefs.ErrInvalidArgument)
	}
	return append(b, '\n'), nil
}

// tell sends the line of a Setup and waits until the process serves by it.
func (p *process) tell(ctx context.Context, line []byte) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if err := p.write(ctx, line); err != nil {
		select {
		case <-p.ended: // its own words say more
			return fmt.Errorf("cannot start carrel-egress: %w", p.err)
		case <-ctx.Done():
		}
		return fmt.Errorf("cannot speak with carrel-egress: %w", err)
	}
	select {
	case err := <-p.ready:
		p.serves.Store(err == nil || p.serves.Load())
		return err
	case <-p.ended:
		return fmt.Errorf("cannot start carrel-egress: %w", p.err)
	case <-ctx.Done():
		return fmt.Errorf("cannot start carrel-egress: it did not answer in time: %w", context.Cause(ctx))
	}
}

// write writes a line, as far as it comes by the end of ctx.
func (p *process) write(ctx context.Context, line []byte) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	_ = p.Control.SetWriteDeadline(time.Time{})
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		_ = p.Control.SetWriteDeadline(time.Unix(1, 0))
	})
	_, err := p.Control.Write(line)
	if !stop() {
		<-over // the next line has a deadline of its own
	}
	return err
}

// read takes what the process reports until it ends.
func (p *process) read(connection func(egressapi.Connection)) {
	in := bufio.NewScanner(p.Control)
	in.Buffer(make([]byte, 0, 4<<10), egressapi.MaxReport)
	var said error
	for said == nil && in.Scan() {
		var r egressapi.Report
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			said = fmt.Errorf("its report is not understood: %w", err)
			break
		}
		switch {
		case r.Error != "":
			said = fmt.Errorf("%s: %w", r.Error, errdefs.ErrUnavailable)
		case r.Connection != nil:
			connection(p.begun.ended(*r.Connection))
		case r.Begun != nil:
			said = p.begun.add(r.Begun)
			p.leases.pace()
		case r.Over != 0:
			delete(p.begun.open, r.Over)
		case r.Moved != nil:
			p.begun.moved(r.Moved)
		case r.Ask != nil:
			said = p.asking.ask(r.Ask)
		case r.Gone != nil:
			p.asking.gone(r.Gone.ID)
		case r.Lease != nil:
			said = p.leases.ask(r.Lease)
		case r.Progress != nil:
			said = p.leases.progress(r.Progress)
		case r.Usage != nil:
			said = p.leases.used(r.Usage)
		case r.Open != nil:
			said = p.listing.opened(r.Open)
		case r.Ready:
			select {
			case p.ready <- nil:
			default: // nobody asked
			}
		}
	}
	p.Control.Close()
	p.asking.end()
	lost := p.leases.end()
	timer := time.AfterFunc(endWithin, p.Kill)
	err := p.Wait()
	timer.Stop()
	if said == nil {
		said = p.leases.why()
	}
	switch {
	case said != nil:
		p.err = said
	case err != nil:
		p.err = err
	default:
		p.err = fmt.Errorf("it ended without a word: %w", errdefs.ErrUnavailable)
	}
	if p.serves.Load() {
		p.begun.lost(lost, !p.told.Load(), p.began, connection)
	}
	close(p.ended)
}

func (p *process) wait() error {
	<-p.ended
	return p.err
}

// end has the process end and waits for that.
func (p *process) end() {
	p.told.Store(true)
	// The process reads the end of the rules, and its last reports are still read here.
	if err := p.Control.CloseWrite(); err == nil {
		timer := time.AfterFunc(endWithin, p.Kill)
		defer timer.Stop()
	}
	<-p.ended
}
