package broker_test

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/brokerapi"
)

// A process that has ended and that nobody waits for does not hold up a destroy for ever:
// there are hosts without an init that does it.
func TestWhatHasEndedHoldsNobodyUp(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	e := p.create(t, life)
	c := exec.CommandContext(t.Context(), "true")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: e.IDs.Work, Gid: e.IDs.Work}}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Wait() }() // not before: it stays a zombie
	begun := time.Now()
	if _, err := life.Destroy(t.Context(), brokerapi.DestroyParams{Name: p.name, Purge: true}); err != nil {
		t.Error(err)
	}
	if d := time.Since(begun); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
	p.gone(t, e)
}
