package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// carrelHost is a private carrel: a broker, a daemon and their directories.
type carrelHost struct {
	b             *bench
	program       string // carrel
	data, runtime string
	brokerPID     int
	daemonPID     int
	client        *carrel.Client
	config        string   // of its daemon; "" for none
	env           []string // as that
}

// host returns the carrel that the figures share.
func (b *bench) host() (*carrelHost, error) {
	if b.main == nil {
		h, err := b.newHost("main")
		if err != nil {
			return nil, err
		}
		b.main = h
	}
	return b.main, nil
}

// newHost brings a carrel up. It is taken down at the end of the run.
func (b *bench) newHost(name string) (*carrelHost, error) { return b.newHostWith(name, "") }

// newHostWith is newHost with a daemon that has settings and variables.
func (b *bench) newHostWith(name, settings string, env ...string) (*carrelHost, error) {
	h := &carrelHost{
		b: b, program: filepath.Join(b.bin, "carrel"), env: env,
		data: filepath.Join(b.dir, name), runtime: filepath.Join(b.dir, name+"-run"),
	}
	b.later(h.down)
	// More than a broker lets anybody create in an hour.
	if err := os.Mkdir(h.data, 0o711); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(h.data, "broker.json"), []byte(`{"create_per_hour":1000000}`), 0o600); err != nil {
		return nil, err
	}
	if settings != "" {
		h.config = filepath.Join(b.dir, name+".yaml")
		if err := os.WriteFile(h.config, []byte(settings), 0o644); err != nil {
			return nil, err
		}
	}
	if err := h.up(b.ctx); err != nil {
		return nil, err
	}
	var err error
	h.client, err = carrel.New(carrel.Options{Host: h.address()})
	return h, err
}

func (h *carrelHost) address() string { return "unix://" + h.runtime + "/carrel.sock" }

func (h *carrelHost) up(ctx context.Context) error {
	args := []string{"up", "--detach", "--prefix", "bench", "--data", h.data, "--runtime-dir", h.runtime, "-o", "json"}
	if h.config != "" {
		args = append(args, "--config", h.config)
	}
	out, err := h.carrel(ctx, args...)
	if err != nil {
		return err
	}
	var up struct {
		BrokerPID int `json:"broker_pid"`
		DaemonPID int `json:"daemon_pid"`
	}
	if err := json.Unmarshal(out, &up); err != nil {
		return fmt.Errorf("cannot read what \"carrel up\" said: %w", err)
	}
	h.brokerPID, h.daemonPID = up.BrokerPID, up.DaemonPID
	return nil
}

// down destroys what there is and takes the carrel away, whatever state it is in.
func (h *carrelHost) down(ctx context.Context) error {
	if h.client != nil {
		defer h.client.Close()
	}
	if _, err := os.Stat(h.data); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := h.up(ctx); err != nil { // nothing changes if it is up
		return err
	}
	// What was being made when the run was interrupted shows up late, and what fails once
	// in the midst of a command's end works then.
	var err error
	for range 5 {
		if err = h.empty(ctx); err != nil {
			continue
		}
		if _, err = h.carrel(ctx, "down", "--purge", "--data", h.data, "--runtime-dir", h.runtime); err == nil {
			break
		}
	}
	return err
}

// empty destroys all workspaces, by a client of its own: the run's may have ended with a
// daemon.
func (h *carrelHost) empty(ctx context.Context) error {
	client, err := carrel.New(carrel.Options{Host: h.address()})
	if err != nil {
		return err
	}
	defer client.Close()
	list, err := client.Workspaces().List(ctx, connect.NewRequest(&carrelv1.ListRequest{}))
	if err != nil {
		return err
	}
	return each(workers, list.Msg.GetWorkspaces(), func(w *carrelv1.Workspace) error {
		_, err := client.Workspaces().Destroy(ctx, connect.NewRequest(&carrelv1.DestroyRequest{Workspace: w.GetName(), Purge: true}))
		return err
	})
}

// each calls f with every item, so many at once, and returns the errors of all.
func each[T any](atOnce int, items []T, f func(T) error) error {
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		errs  []error
	)
	todo := make(chan T)
	for range atOnce {
		group.Go(func() {
			for x := range todo {
				if err := f(x); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, x := range items {
		todo <- x
	}
	close(todo)
	group.Wait()
	return errors.Join(errs...)
}

// carrel runs the command line program. A Ctrl-C is not for it, as it may be what cleans up.
func (h *carrelHost) carrel(ctx context.Context, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, h.program, args...)
	c.Env = append(append(os.Environ(), carrel.HostEnv+"="+h.address()), h.env...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// workspace returns a running workspace, which is made if there is none.
func (h *carrelHost) workspace(key string) (*carrelv1.Workspace, error) {
	ctx := h.b.ctx
	made, err := h.client.Workspaces().Create(ctx, connect.NewRequest(&carrelv1.CreateRequest{Key: key, NoStart: true}))
	if err != nil {
		return nil, err
	}
	if w := made.Msg.GetWorkspace(); w.GetState() == "running" {
		return w, nil
	}
	w, err := h.startWorkspace(key)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// startWorkspace starts a workspace. An unavailable or not yet listening executor is
// tried again and remarked upon: the run is about figures, but it hides nothing.
func (h *carrelHost) startWorkspace(key string) (*carrelv1.Workspace, error) {
	for try := 1; ; try++ {
		res, err := h.client.Workspaces().Start(h.b.ctx, connect.NewRequest(&carrelv1.StartRequest{Workspace: key}))
		if err == nil {
			return res.Msg.GetWorkspace(), nil
		}
		if try == 5 || !(errdefs.IsUnavailable(err) || errdefs.IsFailedPrecondition(err)) {
			return nil, err
		}
		h.b.Remark("a start had to be repeated: %v", err)
	}
}

// stopWorkspace stops a workspace.
func (h *carrelHost) stopWorkspace(key string) error {
	_, err := h.client.Workspaces().Stop(h.b.ctx, connect.NewRequest(&carrelv1.StopRequest{Workspace: key}))
	return err
}

// executor connects to the executor of a workspace without the daemon, as root may.
func (h *carrelHost) executor(w *carrelv1.Workspace, role execapi.Role) (*jsonrpc.Conn, error) {
	return h.connect(filepath.Join("x", w.GetName()+".sock"), execapi.MethodHello,
		execapi.HelloParams{Version: execapi.Version, MinVersion: execapi.MinVersion, Role: role})
}

// broker connects to the broker, as root may.
func (h *carrelHost) broker() (*jsonrpc.Conn, error) {
	return h.connect("broker.sock", brokerapi.MethodHello, brokerapi.HelloParams{Version: brokerapi.Version})
}

// connect connects to a socket in the runtime directory and greets.
func (h *carrelHost) connect(socket, hello string, params any) (*jsonrpc.Conn, error) {
	ctx, cancel := context.WithTimeout(h.b.ctx, 10*time.Second)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.runtime, socket))
	if err != nil {
		return nil, err
	}
	conn := jsonrpc.New(c.(*net.UnixConn), jsonrpc.Config{})
	if _, err := conn.Call(ctx, hello, params, nil); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
