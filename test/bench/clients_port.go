package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
	"github.com/carrel-dev/carrel/test/terminal"
)

const (
	// zerosArg makes this program a server that sends zeros: the port and how many bytes follow.
	zerosArg  = "--serve-zeros"
	zerosPort = 7001
)

// serveZeros sends so many zeros to each client, and then ends the connection. It returns why it cannot go on.
func serveZeros(port, size string) error {
	left, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)) //nolint:noctx // it ends with the process
	if err != nil {
		return err
	}
	zeros := make([]byte, 256<<10)
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			for n := left; n > 0; {
				k, err := c.Write(zeros[:min(n, int64(len(zeros)))])
				if err != nil {
					return
				}
				n -= int64(k)
			}
		}()
	}
}

// ports measures what comes of a server in a workspace through "carrel port", from the connection to its end, beside a connection
// to the same server that is made in the workspace's network.
func (b *bench) ports(h *carrelHost) error {
	size, rounds := int64(1<<30), 9
	if b.quick {
		size, rounds = 256<<20, 3
	}
	w, err := h.workspace("demo")
	if err != nil {
		return err
	}
	server, err := b.inside(h, w.GetHome(), zerosArg, strconv.Itoa(zerosPort), strconv.FormatInt(size, 10))
	if err != nil {
		return err
	}
	defer server()
	direct := func() (io.ReadCloser, error) { return dialWithin(int(w.GetExecutorPid()), zerosPort) }
	if err := listening(direct); err != nil {
		return err
	}
	timed := func(dial func() (io.ReadCloser, error)) func() (time.Duration, error) {
		return measure.Timed(func() error {
			c, err := dial()
			if err != nil {
				return err
			}
			defer c.Close()
			n, err := drain(c)
			return errors.Join(err, whole(n, size))
		})
	}
	for _, x := range []struct {
		id, name string
		args     []string
	}{
		{report.ClientsPort, "carrel port --unix", []string{"--unix", filepath.Join(b.dir, "port.sock"), strconv.Itoa(zerosPort)}},
		{report.ClientsPortTCP, "carrel port", []string{fmt.Sprint("0:", zerosPort)}},
	} {
		dial, end, err := b.published(h, x.args)
		if err != nil {
			return err
		}
		got := measure.Interleave(b.ctx, measure.Pace{Rounds: rounds}, []measure.Contestant{
			{Name: fmt.Sprintf("%s, %d MiB", x.name, size>>20), Op: timed(dial)}, {Name: report.WithinTCP, Op: timed(direct)},
		})
		end()
		for i := range got {
			for _, r := range got[i].Rounds {
				got[i].Rates = append(got[i].Rates, float64(size)/1e9/r[0].Seconds())
			}
		}
		if err := b.rates(x.id, "GB/s", got[0], got[1:]); err != nil {
			return err
		}
	}
	return nil
}

// inside runs this program as a command of demo, until end.
func (b *bench) inside(h *carrelHost, home string, args ...string) (end func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(self)
	if err != nil {
		return nil, err
	}
	program := filepath.Join(home, "bench-server")
	if err := os.WriteFile(program, text, 0o755); err != nil {
		return nil, err
	}
	return b.running(h, nil, append([]string{"exec", "demo", "--", "./bench-server"}, args...)...)
}

// published has "carrel port" listen, and returns how to connect to it.
func (b *bench) published(h *carrelHost, args []string) (dial func() (io.ReadCloser, error), end func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	end, err = b.running(h, w, append([]string{"port", "-o", "json", "demo"}, args...)...)
	w.Close()
	if err != nil {
		return nil, nil, err
	}
	var at []struct{ Network, Address string }
	if err := json.NewDecoder(r).Decode(&at); err != nil || len(at) != 1 {
		end()
		return nil, nil, fmt.Errorf("cannot read where \"carrel port\" listens: %d places: %w", len(at), err)
	}
	return func() (io.ReadCloser, error) {
		return new(net.Dialer).DialContext(b.ctx, at[0].Network, at[0].Address)
	}, end, nil
}

// running starts carrel, which end interrupts and waits for.
func (b *bench) running(h *carrelHost, out *os.File, args ...string) (end func(), err error) {
	c := exec.CommandContext(b.ctx, h.program, args...)
	c.Env = append(append(os.Environ(), carrel.HostEnv+"="+h.address()), h.env...)
	if c.Stderr = os.Stderr; out != nil {
		c.Stdout = out
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait() // it was interrupted
	}, nil
}

// listening waits until something can be connected to.
func listening(dial func() (io.ReadCloser, error)) error {
	for by := time.Now().Add(terminal.Patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := dial()
		if err == nil {
			return c.Close()
		}
		if time.Now().After(by) {
			return fmt.Errorf("cannot connect to the server in the workspace: %w", err)
		}
	}
}

// dialWithin connects to a port of the loopback of a process's network.
func dialWithin(pid, port int) (io.ReadCloser, error) {
	type dialed struct {
		fd  int
		err error
	}
	done := make(chan dialed, 1)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine: it has another network
		space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			done <- dialed{-1, err}
			return
		}
		defer space.Close()
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- dialed{-1, fmt.Errorf("cannot enter the network of process %d: %w", pid, err)}
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			if err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				_ = unix.Close(fd)
			}
		}
		done <- dialed{fd, err}
	}()
	x := <-done
	if x.err != nil {
		return nil, x.err
	}
	f := os.NewFile(uintptr(x.fd), "tcp")
	defer f.Close()
	return net.FileConn(f)
}
