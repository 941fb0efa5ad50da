package fleet_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
)

// unanswered is a connection of package ssh that has ended in the moment in which a channel was asked for: nobody is ever answered.
type unanswered struct {
	ssh.Conn

	ended chan struct{}
}

func (u unanswered) OpenChannel(string, []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	<-u.ended
	return nil, nil, net.ErrClosed
}

func (u unanswered) Wait() error { <-u.ended; return nil }

// Who asks for a channel by way of a host whose connection ends at that moment hears of it at once, and not at the timeout; what ends the
// waiting for another reason is said as ever.
func TestWayThatEndsWhileItIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := unanswered{ended: make(chan struct{})}
		channels, requests := make(chan ssh.NewChannel), make(chan *ssh.Request)
		client := ssh.NewClient(conn, channels, requests)
		gone := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(gone) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		_, err := fleet.Over(ctx, client, gone, "127.0.0.1:22")
		if took := time.Since(began); err == nil || took != time.Second || !fleet.HasEnded(err) {
			t.Errorf("after %v: %v", took, err)
		}
		_, err = fleet.Over(ctx, client, make(chan struct{}), "127.0.0.1:22")
		if !errors.Is(err, context.DeadlineExceeded) || fleet.HasEnded(err) {
			t.Errorf("at the timeout: %v", err)
		}
		close(conn.ended)
		close(channels)
		close(requests)
	})
}
