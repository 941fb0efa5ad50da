package netns

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// message is one netlink message while it is written (RFC 3549, netlink(7)).
type message struct{ b []byte }

// newMessage begins a request of a kind.
func newMessage(kind, flags uint16) *message {
	m := &message{b: make([]byte, 4, 512)} // nlmsg_len comes last
	m.b = binary.NativeEndian.AppendUint16(m.b, kind)
	m.b = binary.NativeEndian.AppendUint16(m.b, unix.NLM_F_REQUEST|flags)
	m.b = append(m.b, make([]byte, 8)...) // nlmsg_seq, nlmsg_pid
	return m
}

func (m *message) bytes(b ...byte) { m.b = append(m.b, b...) }

func (m *message) host32(v uint32) { m.b = binary.NativeEndian.AppendUint32(m.b, v) }

func host32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func (m *message) pad() {
	for len(m.b)%unix.NLMSG_ALIGNTO != 0 {
		m.b = append(m.b, 0)
	}
}

// attr adds an attribute.
func (m *message) attr(kind uint16, v []byte) {
	m.b = binary.NativeEndian.AppendUint16(m.b, uint16(unix.SizeofNlAttr+len(v)))
	m.b = binary.NativeEndian.AppendUint16(m.b, kind)
	m.b = append(m.b, v...)
	m.pad()
}

// text adds a string that ends in NUL, net32 a number in the network's byte order.
func (m *message) text(kind uint16, s string) { m.attr(kind, append([]byte(s), 0)) }

func (m *message) net32(kind uint16, v uint32) {
	m.attr(kind, binary.BigEndian.AppendUint32(nil, v))
}

// nested adds an attribute that holds those that fill adds.
func (m *message) nested(kind uint16, fill func()) {
	at := len(m.b)
	m.attr(kind|unix.NLA_F_NESTED, nil)
	fill()
	binary.NativeEndian.PutUint16(m.b[at:], uint16(len(m.b)-at))
}

// done returns the finished message.
func (m *message) done() []byte {
	m.pad()
	binary.NativeEndian.PutUint32(m.b, uint32(len(m.b)))
	return m.b
}

// answerWithin bounds the wait for the kernel, which answers while it is asked.
const answerWithin = 5 * time.Second

// exchange sends messages and returns the first error that the kernel answers. The last message but
// the end of a batch asks for the answer: a transaction that fails answers for the message that failed.
func exchange(family int, messages []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(answerWithin.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return err
	}
	askForAnswers(messages)
	if err := unix.Sendto(fd, messages, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for want := answers(messages); want > 0; {
		b := make([]byte, 16<<10) // longer than any answer, which repeats the request
		n, err := unix.Read(fd, b)
		if err != nil {
			return err
		}
		got, err := readAnswers(b[:n])
		if err != nil {
			return err
		}
		want -= got
	}
	return nil
}

// each calls f with every message.
func each(messages []byte, f func(kind uint16, m []byte)) {
	for len(messages) >= unix.SizeofNlMsghdr {
		n := int(binary.NativeEndian.Uint32(messages))
		if n < unix.SizeofNlMsghdr || n > len(messages) {
			return
		}
		f(binary.NativeEndian.Uint16(messages[4:]), messages[:n])
		messages = messages[min((n+3)&^3, len(messages)):]
	}
}

// answered reports whether the kernel answers a message of that kind.
func answered(kind uint16) bool {
	return kind != unix.NFNL_MSG_BATCH_BEGIN && kind != unix.NFNL_MSG_BATCH_END
}

func askForAnswers(messages []byte) {
	each(messages, func(kind uint16, m []byte) {
		if answered(kind) {
			flags := binary.NativeEndian.Uint16(m[6:])
			binary.NativeEndian.PutUint16(m[6:], flags|unix.NLM_F_ACK)
		}
	})
}

func answers(messages []byte) (n int) {
	each(messages, func(kind uint16, _ []byte) {
		if answered(kind) {
			n++
		}
	})
	return n
}

// readAnswers counts those that say that all is well, up to the first that does not.
func readAnswers(b []byte) (n int, err error) {
	each(b, func(kind uint16, m []byte) {
		if kind != unix.NLMSG_ERROR || len(m) < unix.SizeofNlMsghdr+4 {
			return
		}
		n++
		if e := int32(binary.NativeEndian.Uint32(m[unix.SizeofNlMsghdr:])); e != 0 && err == nil {
			err = fmt.Errorf("the kernel refuses it: %w", unix.Errno(-e))
		}
	})
	if n == 0 && err == nil {
		err = fmt.Errorf("the kernel's answer is not understood: %w", unix.EBADMSG)
	}
	return n, err
}
