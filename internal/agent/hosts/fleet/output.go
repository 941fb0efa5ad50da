package fleet

// Output is the bounded output of one stream: its first bytes and its last ones. Nothing of it is escaped.
type Output struct {
	// Head are the first bytes, Tail the last; Tail is empty if nothing was dropped between them.
	Head, Tail []byte
	// Dropped counts the bytes between them.
	Dropped int64
}

// Bytes returns head and tail, without a sign of what was dropped between.
func (o Output) Bytes() []byte { return append(append([]byte(nil), o.Head...), o.Tail...) }

// capture keeps the first and the last bytes of a stream, at most max of them. It is for one goroutine. Its memory grows
// with what is written.
type capture struct {
	head    int // of max, the bytes of the head
	max     int
	first   []byte
	ring    []byte // the last bytes, once the head is full
	at      int    // where the oldest byte of a full ring is
	written int64
}

func newCapture(limit int) *capture { return &capture{head: limit / 2, max: limit} }

func (c *capture) Write(p []byte) (int, error) {
	n := len(p)
	c.written += int64(n)
	if room := c.head - len(c.first); room > 0 {
		k := min(room, len(p))
		c.first = append(c.first, p[:k]...)
		p = p[k:]
	}
	size := c.max - c.head
	if len(p) > size {
		p = p[len(p)-size:]
	}
	if k := min(size-len(c.ring), len(p)); k > 0 {
		c.ring = append(c.ring, p[:k]...)
		p = p[k:]
	}
	for len(p) > 0 { // the ring is full
		k := copy(c.ring[c.at:], p)
		p = p[k:]
		c.at = (c.at + k) % size
	}
	return n, nil
}

func (c *capture) output() Output {
	tail := append(append(make([]byte, 0, len(c.ring)), c.ring[c.at:]...), c.ring[:c.at]...)
	o := Output{Head: c.first, Tail: tail, Dropped: c.written - int64(len(c.first)) - int64(len(tail))}
	if o.Dropped == 0 {
		o.Head, o.Tail = append(o.Head, tail...), nil
	}
	return o
}
