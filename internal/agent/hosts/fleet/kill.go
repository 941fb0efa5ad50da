package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// kill ends the process group of a step through a second session, and says whether that is certain. ctx may have ended.
func (r *running) kill(ctx context.Context) Kill {
	grace := r.client.config.KillGrace
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+killTime)
	defer cancel()
	r.out.mu.Lock()
	says := r.out.says
	r.out.mu.Unlock()
	group, started, ok := leader(says)
	if !ok {
		return r.signalAll("the host did not say that the step has a process group of its own")
	}
	mark := "carrel-" + rand.Text()
	said, err := r.second(ctx, mark, killScript(mark, group, started, grace))
	if err != nil {
		return r.signalAll("the host could not be asked to kill it: " + err.Error())
	}
	if said != "gone" {
		return Kill{Tried: true, Why: "the host says of its processes: " + plain(said)}
	}
	if !r.waits(2 * time.Second) {
		return Kill{Tried: true, Why: "its process group is gone, but a process that left the group holds its output open"}
	}
	return Kill{Tried: true, Confirmed: true}
}

// signalAll asks the server itself to kill the step, which confirms nothing.
func (r *running) signalAll(why string) Kill {
	_, _ = r.ch.SendRequest("signal", false, ssh.Marshal(struct{ Name string }{"KILL"})) // the result says that it is not known
	return Kill{Tried: true, Why: why}
}

// leader reads what a step tells of its group: "run PGID START".
func leader(says string) (group int, started string, ok bool) {
	f := strings.Fields(says)
	if len(f) < 2 || len(f) > 3 || f[0] != "run" {
		return 0, "", false
	}
	group, err := strconv.Atoi(f[1])
	if err != nil || group < 2 || group > 1<<30 {
		return 0, "", false
	}
	if len(f) == 3 {
		if _, err := strconv.ParseUint(f[2], 10, 64); err != nil {
			return 0, "", false
		}
		started = f[2]
	}
	return group, started, true
}

// second runs a script of the package's own in another session, and returns what follows the mark in its output.
func (r *running) second(ctx context.Context, mark string, script []byte) (string, error) {
	ch, requests, err := r.client.session(ctx, r.link)
	if err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { ch.Close() })
	defer stop()
	defer ch.Close()
	start := r.client.pool.running.Go
	start(func() { ssh.DiscardRequests(requests) })
	start(func() { _, _ = io.Copy(io.Discard, ch.Stderr()) })
	start(func() {
		if _, err := ch.Write(script); err == nil {
			_ = ch.CloseWrite() // the answer says whether it arrived
		}
	})
	answer := make(chan string, 1)
	start(func() {
		var b bytes.Buffer
		_, _ = io.Copy(&b, io.LimitReader(ch, maxNoise)) // what arrived is looked at
		_, _ = io.Copy(io.Discard, ch)
		answer <- b.String()
	})
	select {
	case all := <-answer:
		_, after, ok := strings.Cut(all, mark)
		line, _, whole := strings.Cut(after, "\n")
		if !ok || !whole {
			return "", unavailable("it did not say whether the step's processes are gone")
		}
		return strings.TrimSpace(line), nil
	case <-ctx.Done():
		return "", unavailable("it did not answer in time")
	}
}
