package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/surface/mcp"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// mcpFlags are those of carrel mcp.
type mcpFlags struct {
	listen, clientToken, printConfig string
	anyAddress                       bool
}

func (a *app) mcpCommand() *cobra.Command {
	var x mcpFlags
	c := &cobra.Command{
		Use:   "mcp [flags] [WORKSPACE]",
		Short: "Serve workspaces to coding agents as tools (MCP)",
		Long: `Serve the Model Context Protocol on stdin and stdout: tools that run commands, read, write and
change files, and show policy and record, in one workspace or, without WORKSPACE, in all that
you may use. Everything is judged as a model's and recorded. What a person has to approve is
not run before somebody has answered by "carrel approvals": no client can approve it.

With --listen it is served as streamable HTTP at an address of loopback or on a socket that
only you can use. At an address clients send the token that is in --client-token-file, which is
made with a new token if there is none. All clients act as you, or as your carrel token.

--print-config prints the line that tells an agent of it, with this WORKSPACE and carrel.`,
		Example: `  carrel mcp --print-config claude demo
  carrel --token-file ~/.agent-token mcp demo
  carrel mcp --listen 127.0.0.1:7450 --client-token-file ~/.mcp-token demo`,
		Args:              between(nil, "WORKSPACE"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	f := c.Flags()
	f.StringVar(&x.listen, "listen", "", "serve HTTP at 127.0.0.1:PORT, [::1]:PORT or unix:PATH")
	f.BoolVar(&x.anyAddress, "any-address", false,
		"with --listen, serve another address than loopback too; HTTP is not encrypted, so put TLS before it")
	f.StringVar(&x.clientToken, "client-token-file", "", "with --listen, a file with the token that clients send, closed to others")
	f.StringVar(&x.printConfig, "print-config", "", "print how to set up "+strings.Join(mcp.Agents(), ", ")+", and end")
	completeFrom(c, "print-config", mcp.Agents()...)
	_ = c.MarkFlagFilename("client-token-file") // the flag is there
	c.RunE = func(c *cobra.Command, args []string) error {
		if x.printConfig != "" {
			return a.printSetup(c, &x, arg(args, 0))
		}
		if x.listen == "" && (x.anyAddress || x.clientToken != "") {
			return usage(c, "cannot use --any-address or --client-token-file without --listen: stdin and stdout need no address and no token")
		}
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		err := a.serveMCP(ctx, &x, arg(args, 0))
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // a signal is how it is ended
		}
		return err
	}
	return c
}

func (a *app) serveMCP(ctx context.Context, x *mcpFlags, workspace string) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := mcp.New(timed, mcp.Config{Client: client, Workspace: workspace, Version: build.Version()})
	if err != nil {
		return err
	}
	if x.listen == "" {
		return s.Run(ctx, a.In, a.Out)
	}
	l, o, err := x.listener(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	where := "http://" + l.Addr().String()
	if strings.HasPrefix(x.listen, "unix:") {
		where = x.listen
	}
	_ = say(a.Err, "carrel: MCP is served at %s\n", where)
	return s.Serve(ctx, l, o)
}

// listener opens what --listen names, and the token of clients.
func (x *mcpFlags) listener(ctx context.Context) (net.Listener, mcp.HTTPOptions, error) {
	fail := func(format string, v ...any) (net.Listener, mcp.HTTPOptions, error) {
		return nil, mcp.HTTPOptions{}, fmt.Errorf("cannot serve at %s: "+format, append([]any{x.listen}, v...)...)
	}
	if path, ok := strings.CutPrefix(x.listen, "unix:"); ok {
		if x.clientToken != "" {
			return fail("a socket that only you can use needs no --client-token-file; leave it out: %w", errdefs.ErrInvalidArgument)
		}
		l, err := privateSocket(ctx, path)
		if err != nil {
			return fail("%w", err)
		}
		return l, mcp.HTTPOptions{Remote: true}, nil
	}
	at, err := netip.ParseAddrPort(x.listen)
	if err != nil {
		return fail("it is no address with a port as 127.0.0.1:7450, and not unix: with a path: %w", errdefs.ErrInvalidArgument)
	}
	if !at.Addr().IsLoopback() && !x.anyAddress {
		return fail("others could reach it, and HTTP is not encrypted; take 127.0.0.1, or give --any-address and put TLS before it: %w",
			errdefs.ErrFailedPrecondition)
	}
	if x.clientToken == "" {
		return fail("every user of the host could use it; name the file of the token that clients send with --client-token-file: %w",
			errdefs.ErrFailedPrecondition)
	}
	token, err := clientToken(x.clientToken)
	if err != nil {
		return nil, mcp.HTTPOptions{}, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", x.listen)
	if err != nil {
		return fail("%w; another program may have the port", err)
	}
	return l, mcp.HTTPOptions{Token: token, Remote: !at.Addr().IsLoopback()}, nil
}

// privateSocket listens on a socket that only this user may connect to, also before its mode could be changed. A socket
// that nothing listens on any more is replaced.
func privateSocket(ctx context.Context, path string) (net.Listener, error) {
	if fi, err := os.Lstat(path); err == nil && fi.Mode().Type() == fs.ModeSocket {
		if c, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
			c.Close()
			return nil, fmt.Errorf("another program listens on it: %w", errdefs.ErrAlreadyExists)
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(path) // the error of Listen says it if it stays
		}
	}
	old := unix.Umask(0o177)
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	unix.Umask(old)
	return l, err
}

// minClientToken is the shortest token of clients, in bytes.
const minClientToken = 24

// clientToken reads the token of clients, and makes the file if there is none.
func clientToken(path string) (string, error) {
	fail := func(format string, v ...any) (string, error) {
		return "", fmt.Errorf("cannot use the token of clients in %s: "+format, append([]any{path}, v...)...)
	}
	made, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		token := rand.Text()
		_, err = io.WriteString(made, token+"\n")
		if err = errors.Join(err, made.Close()); err != nil {
			_ = os.Remove(path)
			return fail("%w", err)
		}
		return token, nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return fail("%w", err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fail("%w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fail("%w", err)
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o077 != 0 {
		return fail("others may read or write it (%v); chmod 600 it, and write a new one if somebody has read it: %w", fi.Mode(),
			errdefs.ErrFailedPrecondition)
	}
	b, err := io.ReadAll(io.LimitReader(f, 4097))
	if err != nil {
		return fail("%w", err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < minClientToken || len(b) > 4096 || strings.ContainsAny(token, " \t\r\n") {
		return fail("it is not one word of %d to 4096 bytes; remove the file, and a new one is made: %w", minClientToken,
			errdefs.ErrInvalidArgument)
	}
	return token, nil
}

// printSetup prints how an agent is told of this command line.
func (a *app) printSetup(c *cobra.Command, x *mcpFlags, workspace string) error {
	if x.listen != "" {
		return usage(c, "cannot print a set-up for --listen: what is printed has an agent start carrel mcp by itself; leave --listen out")
	}
	argv, err := a.mcpArgv(workspace)
	if err != nil {
		return err
	}
	line, err := mcp.Setup(x.printConfig, argv)
	if err != nil {
		return err
	}
	if a.tokenFile == "" && os.Getenv(carrel.TokenEnv) != "" {
		_ = say(a.Err, "carrel: the token in $%s is not part of it; --token-file names a file with one that the agent is to use\n",
			carrel.TokenEnv)
	}
	return say(a.Out, "%s\n", line)
}

// mcpArgv is a command line that serves MCP by the same carrel, without the value of any secret.
func (a *app) mcpArgv(workspace string) ([]string, error) {
	program := "carrel"
	if self, err := os.Executable(); err == nil {
		// Agents are started with other search paths than shells.
		if beside := filepath.Join(filepath.Dir(self), "carrel"); isProgram(beside) {
			program = beside
		}
	}
	if found, err := exec.LookPath("carrel"); program == "carrel" && err == nil {
		program = found
	}
	argv := []string{program}
	name, _, _, err := a.chosenContext()
	if err != nil {
		return nil, err
	}
	host := a.host
	if host == "" && name == "" {
		host = os.Getenv(carrel.HostEnv)
	}
	if name != "" {
		argv = append(argv, "--context", name)
	}
	for _, f := range []struct{ name, value string }{
		{"--host", host}, {"--fingerprint", a.fingerprint}, {"--ca-file", a.caFile}, {"--token-file", a.tokenFile},
	} {
		if f.value == "" {
			continue
		}
		if strings.HasSuffix(f.name, "-file") {
			if f.value, err = filepath.Abs(f.value); err != nil {
				return nil, fmt.Errorf("cannot use the file %q: %w", f.value, err)
			}
		}
		argv = append(argv, f.name, f.value)
	}
	if a.rootless || os.Getenv(rootlessEnv) == "1" && host == "" {
		argv = append(argv, "--rootless")
	}
	argv = append(argv, "mcp")
	if strings.HasPrefix(workspace, "-") {
		argv = append(argv, "--")
	}
	if workspace != "" {
		argv = append(argv, workspace)
	}
	return argv, nil
}

func isProgram(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o111 != 0
}
