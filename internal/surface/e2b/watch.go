package e2b

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	pb "github.com/carrel-dev/carrel/gen/e2b/filesystem"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

const (
	// maxWatchers is how many watchers of one sandbox collect, maxCollected how many events one of them keeps, and unread how
	// long one lives that nobody asks.
	maxWatchers  = 16
	maxCollected = 4096
	unread       = 5 * time.Minute
	// depthOfAll is how deep a recursive watch goes.
	depthOfAll = fileapi.MaxDepth
)

// eventTypes are the kinds of events. A move is the removal of a name and the creation of another.
var eventTypes = map[string]pb.EventType{
	"create": pb.EventType_EVENT_TYPE_CREATE, "write": pb.EventType_EVENT_TYPE_WRITE, "remove": pb.EventType_EVENT_TYPE_REMOVE,
	"attributes": pb.EventType_EVENT_TYPE_CHMOD,
}

// watch gives emit what happens below a directory, until ctx ends. ready is called when it sees what happens.
func (s *Server) watch(ctx context.Context, p string, recursive bool, ready func() error, emit func([]*pb.FilesystemEvent) error) error {
	depth := 1
	if recursive {
		depth = depthOfAll
	}
	first := true
	_, err := s.on(ctx, fileapi.Request{Op: fileapi.Watch, Path: []byte(p), Depth: depth}, fileapi.Streams{
		Events: func(list []fileapi.Event) error {
			if first { // the first says that it watches
				first = false
				if err := ready(); err != nil {
					return err
				}
			}
			var out []*pb.FilesystemEvent
			for _, e := range list {
				if e.What == "overflow" {
					return fmt.Errorf("cannot tell all that happened below %s: it was too much; list it and watch again: %w", p,
						errdefs.ErrResourceExhausted)
				}
				if kind, ok := eventTypes[e.What]; ok {
					out = append(out, &pb.FilesystemEvent{Name: path.Clean(string([]rune(string(e.Path)))), Type: kind})
				}
			}
			if len(out) == 0 {
				return nil
			}
			return emit(out)
		},
	})
	return err
}

// WatchDir implements filesystemconnect.FilesystemHandler.
func (s filesystem) WatchDir(ctx context.Context, req *connect.Request[pb.WatchDirRequest],
	stream *connect.ServerStream[pb.WatchDirResponse],
) error {
	if err := begin(req, &req.Msg.Path); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex // one sender at a time
	send := func(m *pb.WatchDirResponse) error {
		mu.Lock()
		defer mu.Unlock()
		return stream.Send(m)
	}
	go func() {
		t := time.NewTicker(keepAlive)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				if err := send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Keepalive{Keepalive: &pb.WatchDirResponse_KeepAlive{}}}); err != nil {
					cancel(err)
				}
			}
		}
	}()
	err := s.watch(ctx, req.Msg.GetPath(), req.Msg.GetRecursive(), func() error {
		return send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Start{Start: &pb.WatchDirResponse_StartEvent{}}})
	}, func(list []*pb.FilesystemEvent) error {
		for _, e := range list {
			if err := send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Filesystem{Filesystem: e}}); err != nil {
				return err
			}
		}
		return nil
	})
	mu.Lock() // nothing is sent when this returns
	defer mu.Unlock()
	cancel(nil)
	return errcode.ToWire(err)
}

// watchers collect for clients that ask now and then, by their ids.
type watchers struct {
	mu     sync.Mutex
	of     map[string]*watcher
	closed bool
	all    sync.WaitGroup
}

type watcher struct {
	sandbox, owner string
	cancel         context.CancelCauseFunc
	expires        *time.Timer

	mu     sync.Mutex
	events []*pb.FilesystemEvent
	err    error
}

func (s *watchers) close() {
	s.mu.Lock()
	s.closed = true
	for _, w := range s.of {
		w.cancel(nil)
	}
	s.mu.Unlock()
	s.all.Wait()
}

// CreateWatcher implements filesystemconnect.FilesystemHandler.
func (s filesystem) CreateWatcher(ctx context.Context, req *connect.Request[pb.CreateWatcherRequest],
) (*connect.Response[pb.CreateWatcherResponse], error) {
	if err := begin(req, &req.Msg.Path); err != nil {
		return nil, err
	}
	// It outlives this call, with the rights that its caller has now.
	on, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	w := &watcher{sandbox: sandboxOf(ctx), owner: authn.FromContext(ctx).String(), cancel: cancel}
	name := string(id.NewTrace())
	if err := s.watchers.add(name, w); err != nil {
		return nil, errcode.ToWire(err)
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	p, recursive := req.Msg.GetPath(), req.Msg.GetRecursive()
	s.watchers.all.Go(func() {
		err := s.watch(on, p, recursive, func() error { close(ready); return nil }, w.collect)
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
		ended <- err
	})
	select {
	case <-ready:
		return connect.NewResponse(&pb.CreateWatcherResponse{WatcherId: name}), nil
	case err := <-ended:
		s.watchers.remove(name)
		return nil, errcode.ToWire(err)
	case <-ctx.Done():
		s.watchers.remove(name)
		return nil, errcode.ToWire(context.Cause(ctx))
	}
}

func (w *watcher) collect(list []*pb.FilesystemEvent) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events)+len(list) > maxCollected {
		return fmt.Errorf("cannot keep more than %d events; ask for them more often: %w", maxCollected, errdefs.ErrResourceExhausted)
	}
	w.events = append(w.events, list...)
	return nil
}

func (s *watchers) add(name string, w *watcher) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, x := range s.of {
		if x.sandbox == w.sandbox {
			n++
		}
	}
	switch {
	case s.closed:
		return fmt.Errorf("cannot watch: the daemon is stopping: %w", errdefs.ErrUnavailable)
	case n >= maxWatchers:
		return fmt.Errorf("cannot watch more of %s: it has %d watchers, the most there may be; remove some: %w", w.sandbox, n,
			errdefs.ErrResourceExhausted)
	case s.of == nil:
		s.of = map[string]*watcher{}
	}
	s.of[name] = w
	w.expires = time.AfterFunc(unread, func() { s.remove(name) })
	return nil
}

func (s *watchers) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.of[name]; w != nil {
		w.expires.Stop()
		w.cancel(nil)
		delete(s.of, name)
	}
}

// one returns a watcher of who asks.
func (s filesystem) one(ctx context.Context, name string) (*watcher, error) {
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	w := s.watchers.of[name]
	if w == nil || w.sandbox != sandboxOf(ctx) || w.owner != authn.FromContext(ctx).String() {
		return nil, notFound("there is no watcher %q; it ends %v after it was asked last", name, unread)
	}
	w.expires.Reset(unread)
	return w, nil
}

// GetWatcherEvents implements filesystemconnect.FilesystemHandler.
func (s filesystem) GetWatcherEvents(ctx context.Context, req *connect.Request[pb.GetWatcherEventsRequest],
) (*connect.Response[pb.GetWatcherEventsResponse], error) {
	w, err := s.one(ctx, req.Msg.GetWatcherId())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := &pb.GetWatcherEventsResponse{Events: w.events}
	w.events = nil
	if len(out.Events) == 0 && w.err != nil && !errors.Is(w.err, context.Canceled) {
		return nil, errcode.ToWire(w.err)
	}
	return connect.NewResponse(out), nil
}

// RemoveWatcher implements filesystemconnect.FilesystemHandler.
func (s filesystem) RemoveWatcher(ctx context.Context, req *connect.Request[pb.RemoveWatcherRequest],
) (*connect.Response[pb.RemoveWatcherResponse], error) {
	if _, err := s.one(ctx, req.Msg.GetWatcherId()); err != nil {
		return nil, errcode.ToWire(err)
	}
	s.watchers.remove(req.Msg.GetWatcherId())
	return connect.NewResponse(&pb.RemoveWatcherResponse{}), nil
}
