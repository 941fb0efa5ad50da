package jobs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The streams of a job.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// The bounds of a stream in bytes. With two files of the tail at most 1 MiB is kept of it, and at least its last 256 KiB.
const (
	headSize = 512 << 10
	tailSize = 256 << 10
	// MaxChunk is how much one call of Output returns.
	MaxChunk = 256 << 10
)

// keeper writes one stream of a job. What cannot be written is missing in it, and holds nothing up.
type keeper struct {
	in     folder
	stream string
	at     int64 // where the next byte stands in the stream
	f      *os.File
	room   int64   // in f
	tail   []int64 // where the files after the first begin
	head   bool    // the first file is there
}

func (k *keeper) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if k.f == nil && !k.next() {
			break
		}
		w, err := k.f.Write(b[:min(k.room, int64(len(b)))])
		k.at, k.room, b = k.at+int64(w), k.room-int64(w), b[w:]
		if err != nil || k.room == 0 {
			_ = k.f.Close() // it may be lost with the machine, as the last of every output may
			k.f = nil
		}
		if err != nil {
			break
		}
	}
	k.at += int64(len(b))
	return n, nil
}

// next begins the next file, and drops the one that is too much.
func (k *keeper) next() bool {
	for len(k.tail) > 1 {
		_ = unix.Unlinkat(k.in.fd, segment(k.stream, k.tail[0]), 0) // one more is kept then
		k.tail = k.tail[1:]
	}
	f, err := k.in.open(segment(k.stream, k.at), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return false
	}
	k.f, k.room = f, headSize
	if k.head {
		k.room, k.tail = tailSize, append(k.tail, k.at)
	}
	k.head = true
	return true
}

func segment(stream string, at int64) string { return stream + "." + strconv.FormatInt(at, 10) }

// Chunk is a part of a stream.
type Chunk struct {
	Data []byte
	// At is where it stands in the stream: behind what was asked for if something between is missing.
	At int64
}

// Next is the offset behind the chunk.
func (c Chunk) Next() int64 { return c.At + int64(len(c.Data)) }

// chunk reads from an offset on. It is empty at the end of what there is.
func (d folder) chunk(stream string, from int64) (Chunk, error) {
	for range 8 { // a file may be dropped before it is opened
		begins, err := d.segments(stream)
		if err != nil {
			return Chunk{}, err
		}
		c, err := d.read(stream, from, begins)
		if !errors.Is(err, fs.ErrNotExist) {
			return c, err
		}
	}
	return Chunk{At: from}, nil
}

func (d folder) segments(stream string) ([]int64, error) {
	names, err := d.names()
	if err != nil {
		return nil, err
	}
	var begins []int64
	for _, n := range names {
		at, ok := strings.CutPrefix(n, stream+".")
		if v, err := strconv.ParseInt(at, 10, 64); ok && err == nil && v >= 0 {
			begins = append(begins, v)
		}
	}
	slices.Sort(begins)
	return begins, nil
}

func (d folder) read(stream string, from int64, begins []int64) (Chunk, error) {
	for _, begin := range begins {
		f, err := d.regular(segment(stream, begin))
		if err != nil {
			return Chunk{}, err
		}
		at := max(from, begin)
		b := make([]byte, MaxChunk)
		n, err := f.ReadAt(b, at-begin)
		_ = f.Close()
		if err != nil && !errors.Is(err, io.EOF) {
			return Chunk{}, err
		}
		if n > 0 {
			return Chunk{b[:n], at}, nil
		}
	}
	return Chunk{At: from}, nil
}
