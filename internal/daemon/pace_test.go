package daemon_test

import (
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/fdapi"
)

var leftOutCount = regexp.MustCompile(`more lines like this one were left out.* count=(\d+)`)

// counted returns how many lines with a message are in a log, and how many it says are not.
func counted(log, message string) (logged, leftOut int) {
	logged = strings.Count(log, `msg="`+message)
	for _, m := range leftOutCount.FindAllStringSubmatch(log, -1) {
		n, _ := strconv.Atoi(m[1])
		leftOut += n
	}
	return logged, leftOut
}

// A caller that holds all the connections it may have, and makes and ends others as fast as it can,
// is refused each, and hardly any of that is logged.
func TestRefusedConnectionsDoNotFillTheLog(t *testing.T) {
	f := setUp(t)
	if err := f.start(false); err != nil {
		t.Fatal(err)
	}
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", f.socket())
		for errors.Is(err, unix.EAGAIN) { // more wait than the backlog takes
			unix.Poll(nil, 1)
			c, err = net.Dial("unix", f.socket())
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for held := 0; ; held++ {
		c := dial()
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, "POST "+fdapi.Path+" HTTP/1.1\r\nHost: carrel\r\nConnection: Upgrade\r\nUpgrade: "+
			fdapi.Protocol+"\r\nContent-Length: 0\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.ReadFull(c, make([]byte, 12)); err != nil {
			t.Logf("%d connections are held", held)
			break
		}
	}
	const attempts = 50_000
	for range attempts - 1 {
		dial().Close()
	}
	last := dial() // they are taken in order
	_, _ = last.Read(make([]byte, 1))
	last.Close()
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	log := f.log.String()
	logged, leftOut := counted(log, "a connection was refused")
	all := logged+leftOut == attempts+1
	if os.Geteuid() != 0 { // who makes more than 128 in a second is cut off before, without a line
		all = logged+leftOut > 100 && logged+leftOut <= attempts+1
	}
	if !all || logged > 40 || len(log) > 64<<10 {
		t.Errorf("%d lines were logged and %d left out, of %d, in %d bytes", logged, leftOut, attempts+1, len(log))
	}
}
