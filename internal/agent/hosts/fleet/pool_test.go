package fleet_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/crypto/ssh"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
)

// A connection beyond the bound is refused while the others are in use.
func TestMaxConnections(t *testing.T) {
	l := newLab(t)
	var hosts []fleet.Host
	release := make(chan struct{})
	began := make(chan struct{}, 3)
	for i := range 3 {
		f := &fake{shell: func(ch ssh.Channel, script string) {
			began <- struct{}{}
			if i < 2 {
				<-release
			}
			fmt.Fprintf(ch, "%s run 5\n", mark(script))
			status(ch, 0)
		}}
		f.start(t)
		l.known(f.line(f.key))
		hosts = append(hosts, l.host("host"+strconv.Itoa(i), &f.sshd))
	}
	l.config.MaxConnections = 2
	c := l.client()
	var wg sync.WaitGroup
	for _, h := range hosts[:2] {
		wg.Go(func() {
			if _, err := c.Run(t.Context(), h, fleet.Step{Argv: []string{"true"}}); err != nil {
				t.Error(err)
			}
		})
	}
	<-began
	<-began
	if _, err := c.Run(t.Context(), hosts[2], fleet.Step{Argv: []string{"true"}}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a third connection of two: %v", err)
	}
	close(release)
	wg.Wait()
	// Those without use make room. It is free once the connection before has ended, which is soon.
	for {
		_, err := c.Run(t.Context(), hosts[2], fleet.Step{Argv: []string{"true"}})
		if err == nil {
			break
		}
		if !errdefs.IsResourceExhausted(err) {
			t.Fatal(err)
		}
	}
}
