package audit

import "time"

// File is the part of an open file that a test may replace.
type File = file

// Wrap makes Open use the result of wrap instead of the file.
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

// CheckJSON is checkJSON.
var CheckJSON = checkJSON

// Queued returns the number of records that the log has accepted, durable or not.
func (l *Log) Queued() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// AsWritten makes a line of a chain's frame and rest, and reports whether asWritten accepts it.
func AsWritten(rest []byte) (line []byte, ok bool) {
	line = append(appendStart(nil, []byte(Genesis), 17, time.Unix(1, 0)), rest...)
	line = append(line, '\n')
	seal(line)
	line = line[:len(line)-1]
	f, ok := parseFrame(line)
	return line, ok && hashHolds(line, f) && asWritten(line)
}

// Overwritten reports whether a log in the directory of f has zeros behind its end.
var Overwritten = overwritten

// ZeroStep is how many zeros are written at once.
const ZeroStep = zeroStep
