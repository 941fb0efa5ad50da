package audit

import "time"

// File is the part of an open file that a test may replace.
type File = file

// Wrap makes Open use what wrap returns in place of the file.
func (o Options) Wrap(wrap func(File) File) Options {
	o.wrap = wrap
	return o
}

// Line returns r as a sealed line, as a forger with this code would write it.
func Line(r Record, prev string, seq int64, at time.Time) []byte {
	b := r.appendRest(appendStart(nil, []byte(prev), seq, at))
	seal(b)
	return b
}

// CheckJSON is what every line is held against.
var CheckJSON = checkJSON

// Queued is how many records the log has taken, durable or not.
func (l *Log) Queued() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// CheckRecord makes a line of a chain's frame and rest, hashes it, and says what the scanner
// that Verify uses first takes it for. A scanner takes one after the other.
func CheckRecord() func(rest []byte) (line []byte, plain bool) {
	s := &scanner{}
	return func(rest []byte) ([]byte, bool) {
		line := append(appendStart(nil, []byte(Genesis), 17, time.Unix(1, 0)), rest...)
		line = append(line, '\n')
		seal(line)
		line = line[:len(line)-1]
		f, ok := parseFrame(line)
		return line, ok && hashHolds(line, f) && s.record(line)
	}
}
