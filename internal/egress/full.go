package egress

import (
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/room"
)

// full is the refusal of what would take more memory than there is.
var full = refusal{
	"too much is under way on this workspace's connections; try again when some of them have ended", errdefs.ErrResourceExhausted,
}

// heads reads the first bytes of a client. Those of a large head have to have room, which giveHead gives back.
type heads struct {
	x *session
	n int
}

func (h *heads) Read(p []byte) (int, error) {
	if h.n > room.SmallHead && !h.x.largeHead {
		if !h.x.s.cfg.Room.Take(room.Head) {
			return 0, full
		}
		h.x.largeHead = true
	}
	n, err := h.x.client.Read(p)
	h.n += n
	return n, err
}

// giveHead gives the room of a large head back.
func (x *session) giveHead() {
	if x.largeHead {
		x.s.cfg.Room.Give(room.Head)
		x.largeHead = false
	}
}
