package audit

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Behind the lines of a live file are zeros, written before a line comes there. The sync of a line then
// changes data only: the file keeps its size and its blocks, and a file system with a journal has nothing
// to write into that. A record has no zero byte, so the lines of a file end before its first one.
//
//	lines ──► size │ zeros ──► zeroed │ blocks that are held, see full.go
//
// After a power cut a group of lines that was not acknowledged may be there in any part, with zeros where
// pages did not reach the disk.

const (
	// zeroStep is how many zeros are written at once: a large record a thousand times, and about a millisecond.
	zeroStep = 1 << 20
	// maxZeros bounds what is read to find the end of the lines.
	maxZeros = 2 * zeroStep
	// maxGroup bounds the lines of one group, and so how far before the end of what is there the first
	// page can be missing: maxPending, and a line for each of those who wait.
	maxGroup = 16 << 20
)

// overwrites says on which file systems, by the magic number of statfs, written blocks are overwritten where
// they are. Others write elsewhere: zeros would cost there and hold nothing.
var overwrites = map[int64]bool{unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true}

// zeros are a page that is mapped often, as nothing is ever written there.
var zeros [128 << 10]byte

func overwritten(f syscall.Conn) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	var st unix.Statfs_t
	cerr := conn.Control(func(fd uintptr) { err = unix.Fstatfs(int(fd), &st) })
	return cerr == nil && err == nil && overwrites[int64(st.Type)]
}

// zero writes a step of zeros behind end, where no lines are, and does not sync them. What it cannot write is no failure:
// the file is what it was. Only who writes calls it, with l.zeroing set.
func (l *Log) zero(end int64) { l.zeroed = writeZeros(l.f, max(l.zeroed, end), end+zeroStep) }

// writeZeros writes zeros from one offset to another, and returns how far it came.
func writeZeros(f io.WriterAt, at, to int64) int64 {
	for at < to {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), to-at)], at)
		at += int64(n)
		if err != nil {
			break
		}
	}
	return at
}

// spread writes and syncs zeros while nobody waits for anything, so that no appender has to.
func (l *Log) spread() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.spreads || l.writing || l.closed || l.err != nil || l.short || l.stalled != nil || l.cut >= 0 {
		return
	}
	end := l.size + int64(len(l.pending))
	if l.zeroed-end >= zeroStep/2 { // who writes may change it, and nobody does
		return
	}
	l.alone(func() error {
		l.zero(end)
		return l.f.Datasync()
	}, func(err error) {
		if err != nil {
			l.fail(err)
		}
	})
}

// endOf returns the offset after the last byte of f that is no zero.
func endOf(f *os.File) (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("cannot read the audit log: %w", err)
	}
	return dataEnd(f, fi.Size())
}

// dataEnd returns the offset after the last byte before size that is no zero; size, if more zeros are there than the
// log writes: somebody else made those.
func dataEnd(f io.ReaderAt, size int64) (int64, error) {
	buf := make([]byte, lookAt)
	for end := size; end > max(0, size-maxZeros); {
		n := min(end, int64(len(buf)))
		if _, err := f.ReadAt(buf[:n], end-n); err != nil {
			return 0, fmt.Errorf("cannot read the end of the audit log: %w", err)
		}
		if data := bytes.TrimRight(buf[:n], "\x00"); len(data) > 0 {
			return end - n + int64(len(data)), nil
		}
		end -= n
	}
	if size <= maxZeros {
		return 0, nil
	}
	return size, nil
}

// firstZero returns the offset of the first zero byte in the last maxGroup bytes before end, or end; also if these
// begin with zeros, which no group does.
func firstZero(f io.ReaderAt, end int64) (int64, error) {
	buf := make([]byte, readChunk)
	begin := max(0, end-maxGroup)
	for at := begin; at < end; {
		n := min(end-at, int64(len(buf)))
		if _, err := f.ReadAt(buf[:n], at); err != nil {
			return 0, fmt.Errorf("cannot read the end of the audit log: %w", err)
		}
		if i := bytes.IndexByte(buf[:n], 0); i >= 0 && at+int64(i) == begin && begin > 0 {
			return end, nil
		} else if i >= 0 {
			return at + int64(i), nil
		}
		at += n
	}
	return end, nil
}
