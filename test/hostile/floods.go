package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

const (
	// many is how often a flood does at once what an honest client does once.
	many = 100
	// held is how long connections and streams of a flood are held open.
	held = 2 * time.Second
)

// flood is a way of a hostile owner through the API. A round of it is repeated without a pause.
type flood struct {
	name  string
	round func(context.Context, *raid) error
}

var floods = []flood{
	{"connect and close", connects("")},
	{"half a request", connects("POST /carrel.v1.WorkspaceService/List HTTP/1.1\r\nHost: car")},
	{"frames without a request", frames},
	{"watches", streams((*raid).watch)},
	{"logs -f", streams((*raid).follow)},
	{"watches of approvals", streams((*raid).watchApprovals)},
	{"questions", question},
	{"creates and destroys", createAndDestroy},
	{"one request id at once", sameID},
	{"commands", command("/bin/true")},
	{"commands of many words", command(append([]string{"/bin/true"}, words()...)...)},
	{"stdin without end", endlessStdin},
	{"archives, kept", keepArchives},
	{"archives, unread", unreadArchive},
	{"lists", lists},
	{"tokens", tokens},
}

func words() []string {
	all := make([]string, 1000)
	for i := range all {
		all[i] = rand.Text()
	}
	return all
}

// key is one of the owner's workspaces.
func (r *raid) key() string {
	return r.Keys[time.Now().UnixNano()/int64(time.Millisecond)%int64(len(r.Keys))]
}

// connects makes connections that say this much and no more. With nothing to say they are closed at once.
func connects(say string) func(context.Context, *raid) error {
	return func(ctx context.Context, r *raid) error {
		for range many {
			c, err := r.dial(ctx)
			if err != nil {
				return err
			}
			if say == "" {
				_ = c.Close() // that is all there is to it
				continue
			}
			defer c.Close()
			if _, err := c.Write([]byte(say)); err != nil {
				return err
			}
		}
		if say != "" {
			pause(ctx, held)
		}
		return nil
	}
}

// frames opens an HTTP/2 connection and sends pings and settings only.
func frames(ctx context.Context, r *raid) error {
	c, err := r.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	ping := []byte{0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}
	settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}
	text := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), settings...)
	text = append(text, bytes.Repeat(append(ping, settings...), 1000)...)
	if err := c.SetDeadline(time.Now().Add(held)); err != nil {
		return err
	}
	for range many {
		if _, err := c.Write(text); err != nil {
			return nil // it was cut off, as it should be
		}
	}
	return nil
}

// streams opens many streams and holds them. open says whether the first message came.
func streams(open func(*raid, context.Context) error) func(context.Context, *raid) error {
	return func(ctx context.Context, r *raid) error {
		ctx, cancel := context.WithTimeout(ctx, held)
		defer cancel()
		var group sync.WaitGroup
		errs := make(chan error, many)
		for range many {
			group.Go(func() {
				if err := open(r, ctx); err != nil && ctx.Err() == nil {
					errs <- err
				}
			})
		}
		group.Wait()
		close(errs)
		return <-errs
	}
}

// stream is what the streams of the API have in common.
type stream interface {
	Receive() bool
	Err() error
	Close() error
}

// hold takes what comes until ctx ends.
func hold(s stream, err error) error {
	if err != nil {
		return err
	}
	defer s.Close()
	for s.Receive() {
	}
	return s.Err()
}

func (r *raid) watch(ctx context.Context) error {
	s, err := r.t.workspaces.Watch(ctx, connect.NewRequest(&carrelv1.WatchRequest{After: 1}))
	return hold(s, err)
}

func (r *raid) watchApprovals(ctx context.Context) error {
	s, err := r.t.approvals.WatchApprovals(ctx, connect.NewRequest(&carrelv1.WatchApprovalsRequest{}))
	return hold(s, err)
}

// follow follows the newest command of a workspace.
func (r *raid) follow(ctx context.Context) error {
	key := r.key()
	list, err := r.t.commands.ListCommands(ctx, connect.NewRequest(&carrelv1.ListCommandsRequest{Workspace: key}))
	if err != nil || len(list.Msg.GetCommands()) == 0 {
		return err
	}
	s, err := r.t.commands.Logs(ctx, connect.NewRequest(&carrelv1.LogsRequest{
		Workspace: key, CommandId: list.Msg.GetCommands()[0].GetCommandId(), Follow: true,
	}))
	return hold(s, err)
}

func question(ctx context.Context, r *raid) error {
	_, err := r.t.commands.Exec(ctx, connect.NewRequest(&carrelv1.ExecRequest{Workspace: r.key(), Command: &carrelv1.Command{
		Argv: []string{"curl", "https://example.com/" + rand.Text()}, ApprovalWaitMs: -1,
	}}))
	if connect.CodeOf(err) == connect.CodeFailedPrecondition {
		return nil // it waits to be answered
	}
	return err
}

func createAndDestroy(ctx context.Context, r *raid) error {
	key := "loop " + rand.Text()
	_, err := r.t.workspaces.Create(ctx, connect.NewRequest(&carrelv1.CreateRequest{Key: key, TtlMs: 60_000}))
	if err != nil {
		return err
	}
	return r.t.destroy(ctx, key, "")
}

// sameID asks for one thing many times at once, for its end too.
func sameID(ctx context.Context, r *raid) error {
	id := rand.Text()
	key := "same " + id
	return errors.Join(
		streams(func(r *raid, ctx context.Context) error {
			_, err := r.t.workspaces.Create(ctx, connect.NewRequest(&carrelv1.CreateRequest{Key: key, RequestId: "c" + id, TtlMs: 30_000}))
			return err
		})(ctx, r),
		streams(func(r *raid, ctx context.Context) error { return r.t.destroy(ctx, key, "d"+id) })(ctx, r),
	)
}

func command(argv ...string) func(context.Context, *raid) error {
	return func(ctx context.Context, r *raid) error {
		_, err := r.t.exec(ctx, r.key(), nil, argv...)
		return err
	}
}

func endlessStdin(ctx context.Context, r *raid) error {
	ctx, cancel := context.WithTimeout(ctx, held)
	defer cancel()
	s := r.t.commands.Stream(ctx)
	err := s.Send(&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Start{Start: &carrelv1.StreamStart{
		Workspace: r.key(), Command: &carrelv1.Command{Argv: []string{"/bin/cat"}, Source: "user"}, Stdin: true,
	}}})
	data := &carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Stdin{Stdin: make([]byte, 32<<10)}}
	for err == nil {
		err = s.Send(data)
	}
	if ctx.Err() != nil {
		return nil
	}
	_, err = s.Receive() // which says why
	return errors.Join(err, s.CloseResponse())
}

// keepArchives fills the shelf with archives of what does not become smaller.
func keepArchives(ctx context.Context, r *raid) error {
	key := r.key()
	if _, err := r.t.exec(ctx, key, nil, "/usr/bin/head", "-c", "30M", "/dev/urandom"); err != nil {
		return err
	}
	if _, err := r.t.exec(ctx, key, nil, "/bin/sh", "-c", "[ -e large ] || head -c 30M /dev/urandom > large"); err != nil {
		return err
	}
	_, err := r.t.archive(ctx, &carrelv1.CreateArchiveRequest{Workspace: key, Live: true})
	return err
}

// unreadArchive has an archive sent and does not read it.
func unreadArchive(ctx context.Context, r *raid) error {
	ctx, cancel := context.WithTimeout(ctx, 2*held)
	defer cancel()
	s, err := r.t.archives.CreateArchive(ctx, connect.NewRequest(&carrelv1.CreateArchiveRequest{Workspace: r.key(), Live: true, Export: true}))
	if err != nil {
		return err
	}
	defer s.Close()
	if s.Receive() {
		pause(ctx, held)
		return nil
	}
	return s.Err()
}

func lists(ctx context.Context, r *raid) error {
	_, a := r.t.workspaces.List(ctx, connect.NewRequest(&carrelv1.ListRequest{Retained: true}))
	_, b := r.t.approvals.ListApprovals(ctx, connect.NewRequest(&carrelv1.ListApprovalsRequest{PageSize: 500}))
	_, c := r.t.archives.ListArchives(ctx, connect.NewRequest(&carrelv1.ListArchivesRequest{}))
	_, d := r.t.workspaces.Stats(ctx, connect.NewRequest(&carrelv1.StatsRequest{}))
	return errors.Join(a, b, c, d)
}

// tokens makes tokens and shows wrong ones.
func tokens(ctx context.Context, r *raid) error {
	_, err := r.t.newToken(ctx)
	wrong := newTenant(r.dial, fmt.Sprintf("carrel_%s_%s", rand.Text()[:12], rand.Text()))
	if _, listErr := wrong.workspaces.List(ctx, connect.NewRequest(&carrelv1.ListRequest{})); listErr == nil {
		return errors.New("a wrong token was taken")
	}
	return err
}
