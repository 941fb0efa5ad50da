package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/built"
	"github.com/carrel-dev/carrel/test/crash/check"
	"github.com/carrel-dev/carrel/test/ended"
)

// host is a carrel of this run's own.
type host struct {
	dir, data, runtime string
	prefix             string // of its workspaces' names, no other run's
	logs               string // where the logs go at the end
	address            string // where the API is served over TLS, "" if it is not
	progress           io.Writer
	daemon, broker     atomic.Int64 // pids
	// killed counts kills and recoveries: while it is odd, something was killed and "carrel up"
	// has not said yet that all is well.
	killed atomic.Int64
}

// askRule has policy ask about one program, so that questions can be made at will.
const askRule = `
  - id: hostile.ask
    level: CONFIRM
    risk_score: 50
    reason: somebody is to be asked
    match: {command: [curl]}
`

// newHost builds the programs and brings a carrel up.
func newHost(ctx context.Context, o options, progress io.Writer) (*host, error) {
	rules, err := os.ReadFile("test/permissive.yaml")
	if err != nil {
		return nil, fmt.Errorf("cannot read the rules: %w; run this at the top of the repository", err)
	}
	dir, err := os.MkdirTemp(o.dir, "carrel-hostile-")
	if err != nil {
		return nil, err
	}
	h := &host{
		prefix: fmt.Sprintf("hst%x", os.Getpid()), dir: dir, data: dir + "/data", runtime: dir + "/run", logs: o.logs, progress: progress,
	}
	settings := "socket_mode: \"0666\"\npolicy:\n  path: " + dir + "/policy.yaml\n"
	if len(o.beside) > 0 {
		if h.address, err = freeAddress(ctx); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		settings += "listen: " + h.address + "\n"
	}
	broker := `{"create_burst":1000000,"create_per_hour":1000000}`
	if o.pace {
		broker = "{}"
	}
	h.say("building carrel")
	err = errors.Join(
		os.Chmod(dir, 0o711), os.Mkdir(h.data, 0o711), built.Programs(ctx, dir+"/bin"),
		os.WriteFile(dir+"/policy.yaml", append(rules, askRule...), 0o644),
		os.WriteFile(dir+"/carreld.yaml", []byte(settings), 0o644),
		os.WriteFile(h.data+"/broker.json", []byte(broker), 0o600),
	)
	if err == nil {
		err = h.up(ctx)
	}
	if err != nil {
		_, downErr := h.down()
		return nil, errors.Join(err, downErr)
	}
	return h, nil
}

// freeAddress is one of the loopback's at which nobody listens.
func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (h *host) say(format string, args ...any) { fmt.Fprintf(h.progress, format+"\n", args...) }

func (h *host) socket() string { return h.runtime + "/carrel.sock" }

// flags name the instance.
func (h *host) flags() []string { return []string{"--data", h.data, "--runtime-dir", h.runtime} }

// carrel runs the command line program as root. A Ctrl-C is not for it, as it may be what
// cleans up.
func (h *host) carrel(ctx context.Context, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, h.dir+"/bin/carrel", args...)
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", carrel.HostEnv + "=unix://" + h.socket()}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return out, fmt.Errorf("carrel %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

func (h *host) up(ctx context.Context) error {
	args := []string{"up", "--detach", "--prefix", h.prefix, "--config", h.dir + "/carreld.yaml", "-o", "json"}
	out, err := h.carrel(ctx, append(args, h.flags()...)...)
	if err != nil {
		return err
	}
	var up struct {
		BrokerPID int64 `json:"broker_pid"`
		DaemonPID int64 `json:"daemon_pid"`
	}
	if err := json.Unmarshal(out, &up); err != nil {
		return fmt.Errorf("cannot read what \"carrel up\" said: %w", err)
	}
	h.broker.Store(up.BrokerPID)
	h.daemon.Store(up.DaemonPID)
	return nil
}

// down destroys every workspace, takes the carrel away and returns what is left of it. It is
// cleaning up, so that an interrupt does not keep it.
func (h *host) down() ([]string, error) {
	h.say("taking everything away")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if _, err := os.Stat(h.data + "/up.json"); errors.Is(err, os.ErrNotExist) {
		return nil, os.RemoveAll(h.dir) // it has never been up
	}
	instance, err := check.Read(h.data, h.prefix)
	for ctx.Err() == nil { // a workspace may go by itself while it is destroyed, and more of them on a loaded host
		if err = errors.Join(h.up(ctx), h.empty(ctx)); err == nil {
			break
		}
	}
	var logErr error
	if h.logs != "" {
		logErr = os.CopyFS(h.logs, os.DirFS(h.data+"/log"))
	}
	// This refuses while there is a workspace, so that one that went by itself while it was destroyed is no error.
	if _, downErr := h.carrel(ctx, append([]string{"down", "--purge"}, h.flags()...)...); downErr != nil {
		return nil, fmt.Errorf("cannot take all away, %s stays: %w", h.dir, errors.Join(err, logErr, downErr))
	}
	instance.Settle = 5 * time.Second
	// Other tests may come and go on this host meanwhile, and share the daemon's account.
	instance.Except = []check.Kind{check.Lock, check.Account}
	found, err := instance.Look(ctx, check.Expect{Gone: true})
	var left []string
	for _, l := range found {
		left = append(left, l.String())
	}
	return left, errors.Join(err, logErr, os.RemoveAll(h.dir))
}

// empty destroys every workspace.
func (h *host) empty(ctx context.Context) error {
	out, err := h.carrel(ctx, "ls", "-q")
	if names := strings.Fields(string(out)); err == nil && len(names) > 0 {
		_, err = h.carrel(ctx, append([]string{"destroy", "--purge"}, names...)...)
	}
	return err
}

// stands brings up what ended by itself, and returns a sentence about it.
func (h *host) stands(ctx context.Context) (lost []string, err error) {
	for part, pid := range map[string]*atomic.Int64{"daemon": &h.daemon, "broker": &h.broker} {
		if errors.Is(unix.Kill(int(pid.Load()), 0), unix.ESRCH) {
			lost = append(lost, h.ended(part))
		}
	}
	return lost, h.up(ctx)
}

// ended says that a part is not there, and what its log says of that.
func (h *host) ended(part string) string {
	log, _ := os.ReadFile(h.data + "/log/" + part + ".log") // said as far as it is there
	if i := bytes.LastIndex(log, []byte("\npanic: ")); i >= 0 {
		log = log[i : i+min(len(log)-i, 2000)]
	}
	return fmt.Sprintf("the %s had ended by itself; its log: %s", part, log[max(0, len(log)-2000):])
}

// verified says what "carrel audit verify" says.
func (h *host) verified(ctx context.Context) (string, error) {
	out, err := h.carrel(ctx, "audit", "verify")
	return strings.TrimSpace(string(out)), err
}

// restart is one kill, and how long it took until "carrel up" said that all is well.
type restart struct {
	Part string  `json:"part"`
	Up   float64 `json:"up_seconds"`
	Err  string  `json:"error,omitempty"`
}

// restarts kills the daemon now and then, and the broker once in between.
func (h *host) restarts(ctx context.Context, o options) (all []restart) {
	if o.restarts == 0 {
		return nil
	}
	tick := time.NewTicker((o.life - o.reference) / time.Duration(o.restarts+2))
	defer tick.Stop()
	for i := range o.restarts + 1 {
		select {
		case <-ctx.Done():
			return all
		case <-tick.C:
		}
		part, pid := "daemon", &h.daemon
		if i == (o.restarts+1)/2 {
			part, pid = "broker", &h.broker
		}
		all = append(all, h.restart(ctx, part, int(pid.Load())))
	}
	return all
}

func (h *host) restart(ctx context.Context, part string, pid int) restart {
	h.killed.Add(1)
	defer h.killed.Add(1)
	var err error
	if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		err = errors.New(h.ended(part))
	} else {
		err = ended.Kill(pid)
	}
	began := time.Now()
	err = errors.Join(err, h.up(ctx))
	r := restart{Part: part, Up: time.Since(began).Seconds()}
	if err != nil {
		r.Err = err.Error()
	}
	h.say("the %s was killed; up again after %.1f s %s", part, r.Up, r.Err)
	return r
}

// sizeOf is what the files below a directory take.
func sizeOf(dir string) (sum int64) {
	// What goes meanwhile has no size.
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				sum += info.Size()
			}
		}
		return nil
	})
	return sum
}
