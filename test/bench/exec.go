package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// workers is how many call at once in the figures of throughput.
const workers = 8

// slowest is what the slowest peer takes for an exec, so that a block holds some.
const slowest = 15 * time.Millisecond

// api runs the command through the daemon: CommandService.Exec, a unary call, whose
// intent is durable before the command starts. The workspaces are used in turn.
func (h *carrelHost) api(name string, discard bool, workspaces ...string) measure.Contestant {
	client := h.client.Commands()
	var turn atomic.Uint64
	return measure.Contestant{Name: name, Op: measure.Timed(func() error {
		w := workspaces[int(turn.Add(1))%len(workspaces)]
		res, err := client.Exec(h.b.ctx, connect.NewRequest(&carrelv1.ExecRequest{
			Workspace: w, Command: &carrelv1.Command{Argv: []string{command}}, DiscardOutput: discard,
		}))
		if err == nil && res.Msg.GetStatus().GetCode() != 0 {
			err = fmt.Errorf("%s ended with code %d", command, res.Msg.GetStatus().GetCode())
		}
		return err
	})}
}

// direct runs the command through the executor alone: what an exec costs without API,
// gate and record.
func direct(h *carrelHost, conn *jsonrpc.Conn) measure.Contestant {
	return measure.Contestant{Name: "executor alone", Op: measure.Timed(func() error {
		var res execapi.ExecResult
		_, err := conn.Call(h.b.ctx, execapi.MethodExec, execapi.ExecParams{ID: id.NewCommand(), Argv: []string{command}, Wait: true}, &res)
		if err == nil && (res.Status == nil || res.Status.Code != 0) {
			err = fmt.Errorf("%s ended with %+v", command, res.Status)
		}
		return err
	})}
}

// idleCall is a call that does nothing: what the API costs without anything behind it.
func (h *carrelHost) idleCall() measure.Contestant {
	client := h.client.System()
	return measure.Contestant{Name: "API call that does nothing", Op: measure.Timed(func() error {
		_, err := client.Version(h.b.ctx, connect.NewRequest(&carrelv1.VersionRequest{}))
		return err
	})}
}

// exec measures one warm command after another by one client.
func (b *bench) exec() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	w, err := h.workspace("demo")
	if err != nil {
		return err
	}
	conn, err := h.executor(w, execapi.Spawn)
	if err != nil {
		return err
	}
	defer conn.Close()
	ours := []measure.Contestant{
		h.api("warm exec, policy on", true, "demo"), h.api("warm exec, output captured", false, "demo"), direct(h, conn), h.idleCall(),
	}
	floor, stop, err := b.floor()
	if err != nil {
		return err
	}
	defer stop()
	others := append([]measure.Contestant{fork(), floor}, b.peers.beside()...)
	got := measure.Interleave(b.ctx, b.pace(slowest), append(ours, others...))
	for i, id := range []string{report.Exec, report.ExecCaptured, report.ExecExecutor, report.ExecAPI} {
		peers := got[len(ours):]
		if id != report.Exec {
			peers = peers[:1]
		}
		if id == report.ExecAPI {
			peers = nil
		}
		if err := b.times(id, time.Millisecond, got[i], peers); err != nil {
			return err
		}
	}
	return nil
}

// exec8 measures how many commands eight callers get done together, in one workspace
// and spread over eight.
func (b *bench) exec8() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	keys := make([]string, workers)
	for i := range keys {
		keys[i] = fmt.Sprintf("worker %d", i)
		if _, err := h.workspace(keys[i]); err != nil {
			return err
		}
	}
	if _, err := h.workspace("demo"); err != nil {
		return err
	}
	ours := []measure.Contestant{h.api("8 workers, one workspace", true, "demo"), h.api("8 workers, 8 workspaces", true, keys...)}
	others := append([]measure.Contestant{fork()}, b.peers.beside()...)
	p := b.pace(slowest * workers / 2)
	p.Warm = 1
	got := measure.Throughput(b.ctx, p, workers, append(ours, others...))
	peers := got[len(ours):]
	if err := b.rates(report.Exec8, "exec/s", got[0], peers); err != nil {
		return err
	}
	if err := b.rates(report.Exec8Spread, "exec/s", got[1], peers[:1]); err != nil {
		return err
	}
	got[0].Name = "8 workers, one workspace: latency"
	return b.times(report.Exec8Latency, time.Millisecond, got[0], peers)
}

// cli measures the command line program as a whole process.
func (b *bench) cli() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	if _, err := h.workspace("demo"); err != nil {
		return err
	}
	env := append(os.Environ(), carrel.HostEnv+"="+h.address())
	ours := program("carrel exec", env, nil, h.program, "exec", "demo", "--", command)
	all := append([]measure.Contestant{ours, fork()}, b.peers.beside()...)
	got := measure.Interleave(b.ctx, b.pace(slowest), append(all, b.peers.others(b)...))
	return b.times(report.CLI, time.Millisecond, got[0], got[1:])
}

// echoArg makes this program the far end of the socket that ping is measured beside.
const echoArg = "echo-on-standard-input"

// ping measures a request that the executor answers at once, on a connection of our own
// to its socket, beside a line that another Go process sends back.
func (b *bench) ping() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	w, err := h.workspace("demo")
	if err != nil {
		return err
	}
	conn, err := h.executor(w, execapi.Control)
	if err != nil {
		return err
	}
	defer conn.Close()
	ours := measure.Contestant{Name: "executor ping, direct connection", Op: measure.Timed(func() error {
		_, err := conn.Call(b.ctx, execapi.MethodPing, struct{}{}, nil)
		return err
	})}
	line, stop, err := startEcho(b.ctx)
	if err != nil {
		return err
	}
	defer stop()
	echo := measure.Contestant{Name: report.Echo, Op: measure.Timed(line)}
	got := measure.Interleave(b.ctx, b.pace(0), []measure.Contestant{ours, echo})
	return b.times(report.Ping, time.Microsecond, got[0], got[1:])
}

// startEcho starts this program as the far end of a socket; line sends one there and
// waits for it to come back.
func startEcho(ctx context.Context) (line func() error, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	near, far, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	c := exec.CommandContext(ctx, self, echoArg)
	c.Stdin, c.Stderr = far, os.Stderr
	err = c.Start()
	far.Close()
	if err != nil {
		near.Close()
		return nil, nil, err
	}
	message, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "ping"})
	message = append(message, '\n')
	r := bufio.NewReader(near)
	line = func() error {
		if _, err := near.Write(message); err != nil {
			return err
		}
		_, err := r.ReadSlice('\n')
		return err
	}
	stop = func() {
		near.Close()
		_ = c.Wait() // it ends with its socket
	}
	return line, stop, err
}

// echo sends every line back.
func echo() {
	c, err := connOf(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: cannot echo:", err)
		os.Exit(exitFailed)
	}
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadSlice('\n')
		if err == nil {
			_, err = c.Write(line)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				os.Exit(exitFailed)
			}
			return
		}
	}
}
