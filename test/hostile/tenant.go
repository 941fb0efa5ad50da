package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
)

// tenant is an owner's access to the API, as an ordinary user or with a token.
type tenant struct {
	workspaces carrelv1connect.WorkspaceServiceClient
	commands   carrelv1connect.CommandServiceClient
	archives   carrelv1connect.ArchiveServiceClient
	approvals  carrelv1connect.ApprovalServiceClient
	tokens     carrelv1connect.TokenServiceClient
}

// newTenant makes connections with dial. token may be "".
func newTenant(dial func(context.Context) (net.Conn, error), token string) *tenant {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // streams need it
	tr := &http.Transport{Protocols: &protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	c, url := &http.Client{Transport: bearer{tr, token}}, "http://carrel"
	return &tenant{
		carrelv1connect.NewWorkspaceServiceClient(c, url), carrelv1connect.NewCommandServiceClient(c, url),
		carrelv1connect.NewArchiveServiceClient(c, url), carrelv1connect.NewApprovalServiceClient(c, url),
		carrelv1connect.NewTokenServiceClient(c, url),
	}
}

// bearer shows a token with each request, if there is one.
type bearer struct {
	next  http.RoundTripper
	token string
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

// newToken makes a token for everything that an owner may do with their workspaces.
func (t *tenant) newToken(ctx context.Context) (string, error) {
	res, err := t.tokens.CreateToken(ctx, connect.NewRequest(&carrelv1.CreateTokenRequest{Name: "hostile", Roles: []string{"operator"}}))
	if err != nil {
		return "", err
	}
	return res.Msg.GetSecret(), nil
}

// as is a tenant with the rights of a user of the host.
func (h *host) as(uid int) *tenant { return h.with(uid, "") }

// with is as, with a token, whose rights replace the user's.
func (h *host) with(uid int, token string) *tenant {
	return newTenant(func(context.Context) (net.Conn, error) { return dialAs(h.socket(), uid) }, token)
}

// dialAs connects as another user, in a thread that ends with it.
func dialAs(path string, uid int) (net.Conn, error) {
	type answer struct {
		conn net.Conn
		err  error
	}
	got := make(chan answer)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		c, err := connectAs(path, uintptr(uid))
		got <- answer{c, err}
	}()
	a := <-got
	return a.conn, a.err
}

func connectAs(path string, id uintptr) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS}, {unix.SYS_SETRESGID, id, id, id}, {unix.SYS_SETRESUID, id, id, id},
	} {
		if _, _, e := unix.RawSyscall(call[0], call[1], call[2], call[3]); e != 0 {
			return nil, os.NewSyscallError("system call "+strconv.Itoa(int(call[0])), e)
		}
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	return net.FileConn(f)
}

func (t *tenant) exec(ctx context.Context, workspace string, stdin []byte, argv ...string) (*carrelv1.ExecResponse, error) {
	res, err := t.commands.Exec(ctx, connect.NewRequest(&carrelv1.ExecRequest{
		Workspace: workspace, Command: &carrelv1.Command{Argv: argv, Source: "user"}, Stdin: stdin,
	}))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func (t *tenant) detach(ctx context.Context, workspace string, timeoutMs, output int64, argv ...string) (string, error) {
	res, err := t.commands.Detach(ctx, connect.NewRequest(&carrelv1.DetachRequest{
		Workspace: workspace, Command: &carrelv1.Command{Argv: argv, Source: "user", TimeoutMs: timeoutMs}, OutputLimit: output,
	}))
	if err != nil {
		return "", err
	}
	return res.Msg.GetCommandId(), nil
}

func (t *tenant) destroy(ctx context.Context, workspace, requestID string) error {
	_, err := t.workspaces.Destroy(ctx,
		connect.NewRequest(&carrelv1.DestroyRequest{Workspace: workspace, Purge: true, RequestId: requestID}))
	return err
}

// archive makes an archive and returns its id.
func (t *tenant) archive(ctx context.Context, req *carrelv1.CreateArchiveRequest) (made string, err error) {
	s, err := t.archives.CreateArchive(ctx, connect.NewRequest(req))
	if err != nil {
		return "", err
	}
	defer s.Close()
	for s.Receive() {
		if a := s.Msg().GetArchive(); a != nil {
			made = a.GetId()
		}
	}
	if err := s.Err(); err != nil {
		return "", err
	}
	if made == "" {
		return "", errors.New("the stream ended without the archive")
	}
	return made, nil
}

func (t *tenant) removeArchive(ctx context.Context, id string) error {
	_, err := t.archives.RemoveArchive(ctx, connect.NewRequest(&carrelv1.RemoveArchiveRequest{Archive: id}))
	return err
}
