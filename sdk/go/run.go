package carrel

import (
	"context"
	"io"

	"github.com/carrel-dev/carrel/internal/linux/relay"
)

// Streams are the streams that Run copies from and to. A nil Writer discards.
type Streams struct {
	// Stdin is copied to the command's stdin or terminal until it ends. Run does not
	// wait for a Read of it that has not returned.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Run copies between the command and s until the command and its output have ended, closes it,
// and returns its status. If a Writer fails, the command gets SIGPIPE or EPIPE at its next write
// there; the error is returned unless it is EPIPE. When ctx ends, the command is hung up.
//
// The kernel copies to an *os.File if it can.
func (c *Command) Run(ctx context.Context, s Streams) (status Status, err error) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	err = relay.Run(relay.Far{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Terminal: c.Terminal}, relay.Near(s), func() (err error) {
		status, err = c.Wait(ctx)
		return err
	})
	return status, err
}
