package program

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/filetree"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

const (
	// searchTime is how long a search may take.
	searchTime = 30 * time.Second
	// searchBytes bounds what one search reads, lineBytes how long a line is matched as one, and shownBytes what
	// is shown of it.
	searchBytes = 1 << 30
	lineBytes   = 64 << 10
	shownBytes  = 512
	// binaryBytes of the beginning tell whether a file is text: it has no byte 0 there.
	binaryBytes = 8 << 10
)

type search struct {
	s     *served
	out   entries
	text  *regexp.Regexp
	limit int
	end   time.Time
	left  int64
	lines *bufio.Reader
}

// search finds names and lines below a directory. It ends early at its bounds, and says so.
func (s *served) search() error {
	p, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	x := search{
		s: s, out: entries{out: s.out}, limit: cmp.Or(s.req.Limit, fileapi.MaxMatches), end: time.Now().Add(searchTime), left: searchBytes,
		lines: bufio.NewReaderSize(nil, lineBytes),
	}
	if _, err := path.Match(s.req.Name, ""); err != nil {
		return fmt.Errorf("cannot search for names like %q: %w; a pattern has *, ? and [a-z], and \\ before what is meant literally: %w",
			s.req.Name, err, errdefs.ErrInvalidArgument)
	}
	if s.req.Text != "" {
		if x.text, err = regexp.Compile(s.req.Text); err != nil {
			return fmt.Errorf("cannot search for the text: %w; its syntax is RE2's: %w", err, errdefs.ErrInvalidArgument)
		}
	}
	d, err := s.dir(p, p.name)
	if err != nil {
		return s.explain("search", p.shown, err)
	}
	defer d.Close()
	w := walk{s: s, depth: cmp.Or(s.req.Depth, fileapi.MaxDepth), visit: x.visit}
	return s.ended("search", p, &x.out, w.below(d, "", 1, nil))
}

func (x *search) visit(d *filetree.Dir, i filetree.Info, at string) error {
	if time.Now().After(x.end) || x.left <= 0 {
		return errEnough
	}
	if x.s.req.Name != "" {
		if ok, err := path.Match(x.s.req.Name, i.Name); err != nil || !ok {
			return nil
		}
	}
	if x.text == nil {
		return x.found(entryOf(i, at))
	}
	if !i.Mode.IsRegular() {
		return nil
	}
	f, i, err := d.Open(i.Name)
	if err != nil {
		return nil // it is not readable, or has gone
	}
	defer f.Close()
	part := io.LimitReader(f, min(i.Size, x.left))
	x.lines.Reset(part)
	if head, _ := x.lines.Peek(binaryBytes); bytes.IndexByte(head, 0) >= 0 {
		return nil
	}
	for n := int64(1); ; n++ {
		line, err := x.lines.ReadSlice('\n')
		if x.left -= int64(len(line)); len(line) > 0 && x.text.Match(bytes.TrimSuffix(line, []byte("\n"))) {
			e := entryOf(i, at)
			e.Line, e.Text = n, bytes.Clone(bytes.TrimRight(line[:min(len(line), shownBytes)], "\r\n"))
			if err := x.found(e); err != nil {
				return err
			}
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			n-- // the line goes on
		} else if err != nil {
			return nil
		}
		if n%256 == 0 && time.Now().After(x.end) {
			return errEnough
		}
	}
}

func (x *search) found(e fileapi.Entry) error {
	if int(x.s.res.Entries) == x.limit {
		return errEnough
	}
	if err := x.out.add(e); err != nil {
		return err
	}
	x.s.res.Entries++
	return nil
}
