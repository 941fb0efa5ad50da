package api_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
)

func TestArchives(t *testing.T) {
	socket, _ := apitest.Serve(t, &apitest.Gate{}, &alice, api.Options{})
	create(t, socket, "demo")
	c := carrelv1connect.NewArchiveServiceClient(unix(t, socket, true), "http://carrel")
	ctx := t.Context()

	// make returns what came, and the last word.
	make := func(req *carrelv1.CreateArchiveRequest) (data []byte, told int, a *carrelv1.Archive, err error) {
		s, err := c.CreateArchive(ctx, request(req))
		if err != nil {
			return nil, 0, nil, err
		}
		defer s.Close()
		for s.Receive() {
			switch m := s.Msg(); {
			case m.GetProgress() != nil:
				told++
			case m.GetArchive() != nil:
				a = m.GetArchive()
			default:
				data = append(data, m.GetData()...)
			}
		}
		return data, told, a, s.Err()
	}
	data, told, a, err := make(&carrelv1.CreateArchiveRequest{Workspace: "demo", Export: true})
	sum := sha256.Sum256(data)
	if err != nil || told != 1 || a.GetSha256() != hex.EncodeToString(sum[:]) || a.GetSize() != int64(len(data)) ||
		a.GetEntries() != 3 || a.GetKey() != "demo" {
		t.Errorf("%d bytes, %d, %v, %v", len(data), told, a, err)
	}
	none, _, kept, err := make(&carrelv1.CreateArchiveRequest{Workspace: "demo"})
	if err != nil || len(none) > 0 || kept.GetSha256() != a.GetSha256() {
		t.Errorf("%d bytes, %v, %v", len(none), kept, err)
	}
	if _, _, _, err := make(&carrelv1.CreateArchiveRequest{Workspace: "nope"}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Error(err)
	}
	list, err := c.ListArchives(ctx, request(&carrelv1.ListArchivesRequest{}))
	if err != nil || len(list.Msg.GetArchives()) != 1 || list.Msg.GetArchives()[0].GetId() != kept.GetId() {
		t.Errorf("%v, %v", list, err)
	}
	s, err := c.ReadArchive(ctx, request(&carrelv1.ReadArchiveRequest{Archive: kept.GetId()}))
	if err != nil {
		t.Fatal(err)
	}
	var read []byte
	last := false
	for s.Receive() {
		read, last = append(read, s.Msg().GetData()...), s.Msg().GetArchive() != nil
	}
	if s.Err() != nil || !bytes.Equal(read, data) || !last {
		t.Errorf("%d bytes, %v, %v", len(read), last, s.Err())
	}

	// restore sends requests and returns the workspace.
	restore := func(messages ...*carrelv1.RestoreRequest) (*carrelv1.Workspace, error) {
		s := c.Restore(ctx)
		for _, m := range messages {
			_ = s.Send(m) // Receive tells
		}
		_ = s.CloseRequest()
		for {
			m, err := s.Receive()
			if err != nil || m.GetWorkspace() != nil {
				return m.GetWorkspace(), err
			}
		}
	}
	start := func(s *carrelv1.RestoreStart) *carrelv1.RestoreRequest {
		return &carrelv1.RestoreRequest{Kind: &carrelv1.RestoreRequest_Start{Start: s}}
	}
	piece := func(b []byte) *carrelv1.RestoreRequest {
		return &carrelv1.RestoreRequest{Kind: &carrelv1.RestoreRequest_Data{Data: b}}
	}
	w, err := restore(start(&carrelv1.RestoreStart{Key: "copy"}), piece(data[:1000]), piece(nil), piece(data[1000:]))
	if err != nil || w.GetKey() != "copy" || w.GetProfile() != a.GetSha256() {
		t.Errorf("%v, %v", w, err)
	}
	w, err = restore(start(&carrelv1.RestoreStart{Key: "again", From: kept.GetId()}))
	if err != nil || w.GetProfile() != a.GetSha256() {
		t.Errorf("%v, %v", w, err)
	}
	for what, messages := range map[string][]*carrelv1.RestoreRequest{
		"nothing":         {},
		"no start":        {piece(data[:1000])},
		"two starts":      {start(&carrelv1.RestoreStart{Key: "x"}), start(&carrelv1.RestoreStart{Key: "x"})},
		"a bad key":       {start(&carrelv1.RestoreStart{Key: "a\nb"})},
		"a limit too low": {start(&carrelv1.RestoreStart{Key: "x", Limits: &carrelv1.Limits{Pids: 1}})},
	} {
		if _, err := restore(messages...); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := c.RemoveArchive(ctx, request(&carrelv1.RemoveArchiveRequest{Archive: kept.GetId()})); err != nil {
		t.Error(err)
	}
	_, err = c.RemoveArchive(ctx, request(&carrelv1.RemoveArchiveRequest{Archive: kept.GetId()}))
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Error(err)
	}
}

// late reports how far it is when it has ended already.
type late struct {
	*apitest.Gate
	told chan struct{}
}

func (l late) Archive(_ context.Context, _ principal.Principal, _ string, _ workspace.ArchiveWanted, _ io.Writer,
	progress func(workspace.Progress),
) (workspace.Archive, error) {
	go func() {
		defer close(l.told)
		for range 10_000 {
			progress(workspace.Progress{Entries: 1})
		}
	}()
	return workspace.Archive{}, errors.New("it has ended")
}

// A report that comes after the answer goes nowhere. Without the guard it ends the daemon.
func TestNothingIsSentAfterTheAnswer(t *testing.T) {
	g := late{&apitest.Gate{}, make(chan struct{})}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	c := carrelv1connect.NewArchiveServiceClient(unix(t, socket, true), "http://carrel")
	s, err := c.CreateArchive(t.Context(), request(&carrelv1.CreateArchiveRequest{Workspace: "demo"}))
	if err != nil {
		t.Fatal(err)
	}
	for s.Receive() {
	}
	if s.Err() == nil {
		t.Error("no error came")
	}
	<-g.told
}

// endless writes, or reads, an archive that has no end.
type endless struct {
	*apitest.Gate
	ended chan error
}

func (e endless) Archive(_ context.Context, _ principal.Principal, _ string, _ workspace.ArchiveWanted, out io.Writer,
	_ func(workspace.Progress),
) (workspace.Archive, error) {
	for b := make([]byte, 1<<20); ; {
		if _, err := out.Write(b); err != nil {
			e.ended <- err
			return workspace.Archive{}, err
		}
	}
}

func (e endless) Restore(_ context.Context, _ principal.Principal, _ workspace.RestoreWanted, in io.Reader,
	_ func(workspace.Progress),
) (api.Workspace, error) {
	_, err := io.Copy(io.Discard, in)
	e.ended <- err
	return api.Workspace{}, err
}

// Whoever takes nothing of an archive, or sends nothing of one, holds up a workspace no longer than
// it may stall; whoever is slow, but moves, goes on.
func TestAStalledClientIsLetGo(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const stall = 2 * time.Second
			g := endless{&apitest.Gate{}, make(chan error, 1)}
			socket, _ := apitest.Serve(t, g, &alice, api.Options{StallTimeout: stall})
			c := carrelv1connect.NewArchiveServiceClient(unix(t, socket, http2), "http://carrel")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if _, err := c.CreateArchive(ctx, request(&carrelv1.CreateArchiveRequest{Workspace: "demo", Export: true})); err != nil {
				t.Fatal(err)
			}
			if err := <-g.ended; err == nil {
				t.Error("the write that nobody takes has no error")
			}
			if !http2 {
				return // which cannot send and receive at once
			}
			s := c.Restore(ctx)
			send := func(m *carrelv1.RestoreRequest) {
				if err := s.Send(m); err != nil {
					t.Error(err)
				}
			}
			send(&carrelv1.RestoreRequest{Kind: &carrelv1.RestoreRequest_Start{Start: &carrelv1.RestoreStart{Key: "x"}}})
			tick := time.NewTicker(stall / 4)
			defer tick.Stop()
			for range 5 { // longer than it may stall
				<-tick.C
				send(&carrelv1.RestoreRequest{Kind: &carrelv1.RestoreRequest_Data{Data: []byte("some")}})
			}
			if err := <-g.ended; !errors.Is(err, os.ErrDeadlineExceeded) && connect.CodeOf(err) != connect.CodeDeadlineExceeded {
				t.Errorf("the read of what does not come: %v", err)
			}
		})
	}
}
