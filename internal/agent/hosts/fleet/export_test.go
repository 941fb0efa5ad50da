package fleet

import (
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/crypto/ssh"
)

// Keep returns what is kept of pieces that are written one after another.
func Keep(limit int, pieces [][]byte) Output {
	c := newCapture(limit)
	for _, p := range pieces {
		_, _ = c.Write(p)
	}
	return c.output()
}

// Split returns what a stream holds of pieces: whether the mark was found, what follows it, what came before and after.
func Split(mark string, limit int, pieces [][]byte) (found bool, says, before string, output Output) {
	s := newStream(mark, limit)
	for _, p := range pieces {
		_, _ = s.Write(p)
	}
	return s.found, s.says, string(s.before), s.output.output()
}

// Script and KillScript are what shells on a host read.
func Script(s Step, h Host, mark string) []byte { return s.script(&h, mark) }

func KillScript(mark string, group int, started string, grace time.Duration) []byte {
	return killScript(mark, group, started, grace)
}

// Over opens a channel by way of a connection, of which gone is closed once it has ended.
func Over(ctx context.Context, client *ssh.Client, gone chan struct{}, where string) (net.Conn, error) {
	return over(ctx, &link{client: client, gone: gone}, where)
}

// HasEnded reports whether an error says that a connection had ended, so that another one may be tried.
func HasEnded(err error) bool {
	_, ended := errors.AsType[*endedError](err)
	return ended
}
