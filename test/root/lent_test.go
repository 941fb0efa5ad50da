package root_test

import (
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What root's programs read in the runtime directory is root's own at every moment: the daemon
// cannot write there, not even while it starts.
func TestRuntimeDirectoryIsNeverLent(t *testing.T) {
	h := newHostFor(t)
	if err := h.down(); err != nil {
		t.Fatal(err)
	}
	var looks, lent atomic.Int64
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			default:
			}
			for _, dir := range []string{h.run, h.run + "/x"} {
				var st unix.Stat_t
				if unix.Lstat(dir, &st) == nil {
					looks.Add(1)
					if st.Uid != 0 || st.Mode&0o022 != 0 {
						lent.Add(1)
					}
				}
			}
		}
	}()
	for range 3 {
		if err := h.up(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		h.carrel(t, "version") // the socket serves those who may use it
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the first answer took %v", took)
		}
		if err := h.down(); err != nil {
			t.Fatal(err)
		}
	}
	close(over)
	<-ended
	if lent.Load() > 0 || looks.Load() < 1000 {
		t.Errorf("in %d of %d looks somebody else could write there", lent.Load(), looks.Load())
	}
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
}

// A process with an id of a workspace is served nothing, even where it reaches the socket.
func TestIDsOfWorkspacesAreRefused(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	socket := h.run + "/carrel.sock"
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint32{d.ExecutorUID, d.UID, d.AgentUID} {
		r := h.try(&syscall.Credential{Uid: id, Gid: id}, "", "ls")
		if r.code == 0 || !strings.Contains(r.err, "is that of a workspace") {
			t.Errorf("uid %d: %+v", id, r)
		}
	}
	// Another user reaches it too, and is served what is theirs.
	if r := h.try(&syscall.Credential{Uid: 65533, Gid: 65533}, "", "ls"); r.code != 0 {
		t.Errorf("%+v", r)
	}
}
