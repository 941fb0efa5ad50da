package root_test

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A paused workspace is paused still when daemon and broker have ended and were started again. "carrel down" stops it as any
// other, and leaves nothing of it that runs; after the next up it starts with its home.
func TestDownWithAPausedWorkspace(t *testing.T) {
	h := newHostFor(t)
	d, beside, still := h.desk(t), h.desk(t), h.desk(t)
	d.sh(t, "echo kept > file")
	counting := "while :; do echo . >> beats; sleep 0.01; done"
	d.detach(t, "/bin/sh", "-c", counting)
	d.sh(t, "until [ -s beats ]; do sleep 0.01; done")
	h.carrel(t, "stop", still.Key)
	h.carrel(t, "pause", d.Key)
	for _, part := range []string{"daemon", "broker"} {
		end(t, h.part(t, part), unix.SIGTERM)
	}
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	if now := h.look(t, d.Key); now.State != "paused" || now.ExecutorPID != d.ExecutorPID {
		t.Fatalf("after another up it is %s, by executor %d, not %d", now.State, now.ExecutorPID, d.ExecutorPID)
	}
	h.carrel(t, "resume", d.Key)
	d.sh(t, "n=$(wc -c < beats); until [ $(wc -c < beats) -gt $n ]; do sleep 0.01; done")
	h.carrel(t, "pause", d.Key)

	held := map[string]int{}
	for _, w := range []*desk{d, beside} {
		fd, err := unix.PidfdOpen(w.ExecutorPID, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		held[w.Name] = fd
	}
	if r := h.try(nil, "", append([]string{"down"}, h.flags()...)...); r.code != 0 {
		t.Fatalf("down: %+v", r)
	}
	for name, fd := range held {
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); n != 1 || err != nil {
			t.Errorf("the executor of %s runs still: %v", name, err)
		}
	}
	h.verified(t)
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*desk{d, beside, still} {
		if now := h.look(t, w.Key); now.State != "stopped" {
			t.Errorf("after down and up %s is %s", w.Name, now.State)
		}
	}
	if out := d.sh(t, "cat file; ps -e -o args | grep -c '[b]eats' || true"); out != "kept\n0" {
		t.Errorf("%q", out)
	}
}
