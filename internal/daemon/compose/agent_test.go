package compose_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// agentDouble is the program of a task: a function of a test, on real pipes, or on a socket. It reads from in and writes to out and errs.
type agentDouble struct {
	in        *bufio.Scanner
	fd        int // of its socket, 0 for pipes
	out, errs *os.File
	stdin     *os.File
	far       []*os.File
	done      chan struct{}
	once      sync.Once
	status    execapi.Status
	err       error
}

func startAgent(run func(*agentDouble) int, fd int) (*agentDouble, error) {
	a := &agentDouble{fd: fd, done: make(chan struct{})}
	var near [3]*os.File
	if fd != 0 {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(p[0]), "socket")
		near = [3]*os.File{f, f, f}
		a.far = []*os.File{os.NewFile(uintptr(p[1]), "socket")}
	}
	for i := range near {
		if fd != 0 {
			break
		}
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		if near[i] = w; i == 0 {
			r, near[i] = w, r
		}
		// The daemon opens what it is given anew, as it does with received descriptors.
		a.far = append(a.far, r)
	}
	a.stdin, a.out, a.errs = near[0], near[1], near[2]
	a.in = bufio.NewScanner(a.stdin)
	a.in.Buffer(nil, 1<<20)
	go func() {
		code := run(a)
		a.end(execapi.Status{Code: code}, nil)
	}()
	return a, nil
}

// end is the end of the program, however it comes.
func (a *agentDouble) end(status execapi.Status, err error) {
	a.once.Do(func() {
		a.status, a.err = status, err
		for _, f := range []*os.File{a.stdin, a.out, a.errs} {
			_ = f.Close()
		}
		close(a.done)
	})
}

func (a *agentDouble) gone(err error) { a.end(execapi.Status{}, err) }

// Files implements runtime.Process.
func (a *agentDouble) Files() []*os.File { return a.far }

// PID implements runtime.Process.
func (a *agentDouble) PID() int { return 2 }

// Close implements runtime.Process: it hangs up.
func (a *agentDouble) Close() error {
	a.end(execapi.Status{Code: 129, Signal: 1}, nil)
	return nil
}

// Wait implements runtime.Process.
func (a *agentDouble) Wait(ctx context.Context) (execapi.Status, error) {
	select {
	case <-a.done:
		return a.status, a.err
	case <-ctx.Done():
		return execapi.Status{}, ctx.Err()
	}
}

// call is a message that an agent was sent.
type call struct {
	ID     *int            `json:"id"`
	Method string          `json:"method"`
	Params map[string]any  `json:"params"`
	Result map[string]any  `json:"result"`
	Error  json.RawMessage `json:"error"`
}

var errEnd = errors.New("the end of the input")

// read reads the next message.
func (a *agentDouble) read() (c call, err error) {
	if !a.in.Scan() {
		return c, errEnd
	}
	return c, json.Unmarshal(a.in.Bytes(), &c)
}

// say writes a line.
func (a *agentDouble) say(format string, args ...any) {
	_, _ = fmt.Fprintf(a.out, format+"\n", args...) // a program that was ended says nothing
}

// ask sends a request and returns the answer to it.
func (a *agentDouble) ask(id int, method, params string) (call, error) {
	a.say(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params)
	return a.read()
}
