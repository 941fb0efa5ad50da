package authn

import (
	"net"
	"time"

	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/linux/peercred"
)

// How many connections one user may make at once, and in a second in the long run. Root may make as many
// as it likes.
const (
	connectBurst = 512
	connectRate  = 128
	// maxConnecting bounds the users that are remembered. The others share one bucket.
	maxConnecting = 4096
)

// Fair returns l, a Unix listener, without connections of users who make more than they may: these are
// closed before anything is done for them, so that who connects and closes without end does not keep the
// queue of the listener full for others. It logs nothing: Serve's connections are counted, and these
// are not worth a line each.
func Fair(l net.Listener) net.Listener { return &fair{l, bucket.NewMany[uint32](maxConnecting)} }

// fair is used by one goroutine, that of Serve.
type fair struct {
	net.Listener
	connecting *bucket.Many[uint32] // by user; 0, who needs none, is those that are not remembered
}

// Accept implements net.Listener.
func (f *fair) Accept() (net.Conn, error) {
	for {
		c, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			return c, nil
		}
		// Who cannot be told is refused later, with the reason.
		if uid, err := peercred.UID(u); err != nil || f.admits(uid, time.Now()) {
			return c, nil
		}
		_ = c.Close()
	}
}

func (f *fair) admits(uid uint32, now time.Time) bool {
	return uid == 0 || f.connecting.Take(uid, bucket.Bound{Burst: connectBurst, Every: time.Second / connectRate}, now) == 0
}
