package hostrun

import "fmt"

// Output is what a stream had: all of it, or its head and tail.
type Output struct {
	Head, Tail []byte
	// Lost is how many bytes stood between them.
	Lost int64
}

// Text is the output for people: what was lost is named where it stood.
func (o Output) Text() string {
	if o.Lost == 0 {
		return string(o.Head) + string(o.Tail)
	}
	return fmt.Sprintf("%s\n[%d bytes left out]\n%s", o.Head, o.Lost, o.Tail)
}

// keeper keeps the head and the tail of what is written to it, half of max each. It holds never more than max.
type keeper struct {
	max        int
	head, ring []byte
	at         int // in ring, where its oldest byte is once it is full
	total      int64
}

func (k *keeper) Write(b []byte) (int, error) {
	n := len(b)
	k.total += int64(n)
	if room := k.max/2 - len(k.head); room > 0 {
		take := min(room, len(b))
		k.head = append(k.head, b[:take]...)
		b = b[take:]
	}
	size := k.max - k.max/2
	if len(b) > size { // only its end can stay
		b = b[len(b)-size:]
	}
	if room := size - len(k.ring); room > 0 {
		take := min(room, len(b))
		k.ring = append(k.ring, b[:take]...)
		b = b[take:]
	}
	for len(b) > 0 {
		c := copy(k.ring[k.at:], b)
		k.at = (k.at + c) % size
		b = b[c:]
	}
	return n, nil
}

// output returns what was kept.
func (k *keeper) output() Output {
	o := Output{Head: k.head, Tail: append(append([]byte{}, k.ring[k.at:]...), k.ring[:k.at]...)}
	o.Lost = k.total - int64(len(o.Head)+len(o.Tail))
	return o
}
