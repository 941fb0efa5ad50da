package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// What may follow the record that a mark calls the last. A mark is kept in the daemon's database, so who can write the
// log alone cannot change it:
//
//	the mark is sealed       nothing: the log took no more records
//	it is not sealed         what the database knows as written; and Late
//
// Daemons before there were seals closed in the wrong order: they recorded the ends of connections behind their own.
// No key proves that such records are a daemon's, as the chain has none. What Late takes is therefore as narrow as what
// they wrote, and the file must not have been written since: its status change time, which no process without the rights of
// root can set back, lies within lateWithin of the end. So a forger would have had to write while the daemon was ending,
// when it could have written before the end as well.

// lateWithin is how long after its end a daemon before seals may have written: it cut connections for some seconds.
const lateWithin = time.Minute

// Stopped is the event of the record that a daemon writes last.
const Stopped = "daemon.stopped"

// Late are records that follow the end of a daemon, and are taken for its own.
type Late struct {
	// Stopped is the record that said that the daemon ends; From and To are the first and the last behind it.
	Stopped int64 `json:"stopped"`
	From    int64 `json:"from"`
	To      int64 `json:"to"`
	// Types says how many there are of each type.
	Types map[Type]int64 `json:"types"`
}

// end is what a walk knows of the end of a daemon.
type end struct {
	mark Mark
	// vouched is the last record that the daemon's database knows.
	vouched int64
	// changed is when the current file was changed last, as the file system has it.
	changed time.Time

	stopped time.Time // of the last record, zero if it is no end of a daemon
	before  time.Time // of the record before
	open    map[int64]bool
	late    *Late
}

// endOfMark is nil for the mark of a daemon that did not end.
func endOfMark(m Mark, known Head, changed time.Time) *end {
	if !m.Ended {
		return nil
	}
	e := &end{mark: m, vouched: max(m.Head.Seq, known.Seq), changed: changed, open: map[int64]bool{}}
	for _, seq := range m.Open {
		e.open[seq] = true
	}
	return e
}

// changedAt is the status change time of a file.
func changedAt(fi os.FileInfo) time.Time {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fi.ModTime()
	}
	return time.Unix(st.Ctim.Unix())
}

// beyond reports whether what is read next follows all that a daemon which ended is known to have written.
func (c *chain) beyond() bool { return c.end != nil && c.next > c.end.vouched }

// forged reports what follows an end.
func (c *chain) forged(why string) bool {
	if why != "" {
		why = " (" + why + ")"
	}
	return c.bad(c.next, Appended, "the daemon stopped at record %d and did not write what follows: a forged append%s",
		c.end.mark.Head.Seq, why)
}

// atEnd looks at the last record of a daemon that ended, and at each behind it.
func (c *chain) atEnd(l *checkedLine) bool {
	e := c.end
	if l.seq > e.mark.Head.Seq && e.mark.Sealed && c.beyond() {
		return c.forged("")
	}
	r, err := Decode(l.line)
	if err != nil {
		return c.forged("record " + fmt.Sprint(l.seq) + " cannot be read")
	}
	if l.seq == e.mark.Head.Seq {
		var data struct {
			Event string `json:"event"`
		}
		if r.Type == Lifecycle && json.Unmarshal(r.Data, &data) == nil && data.Event == Stopped {
			e.stopped, e.before = r.Time, r.Time
		}
		return true
	}
	if c.beyond() {
		if why := e.foreign(&r); why != "" {
			return c.forged(why)
		}
	}
	if e.late == nil {
		e.late = &Late{Stopped: e.mark.Head.Seq, From: l.seq, Types: map[Type]int64{}}
	}
	e.before, e.late.To = r.Time, l.seq
	e.late.Types[r.Type]++
	return true
}

// foreign says why a record behind an end without a seal is not the daemon's; "" if it may be.
func (e *end) foreign(r *Record) string {
	switch {
	case e.stopped.IsZero():
		return fmt.Sprintf("record %d is no end of a daemon", e.mark.Head.Seq)
	case r.Time.Before(e.before), r.Time.After(e.stopped.Add(lateWithin)):
		return fmt.Sprintf("record %d is not of the time in which it ended", r.Seq)
	case e.changed.After(e.stopped.Add(lateWithin)):
		return fmt.Sprintf("the file was changed at %s, after it had ended", e.changed.UTC().Format(time.RFC3339))
	case r.Type == Connection && r.Principal == "system" && r.Owner == "" && r.Workspace != "" && r.Intent == 0 && r.Action == nil:
	case r.Type == Usage && strings.HasPrefix(r.Principal, "inside:") && r.Workspace != "" && r.Intent == 0 && r.Action == nil:
	case r.Type == Outcome && e.open[r.Intent] && r.Action == nil:
		delete(e.open, r.Intent)
	default:
		return fmt.Sprintf("record %d, of type %s, is none that an ending daemon wrote", r.Seq, r.Type)
	}
	return ""
}

// Text says it to a person.
func (l *Late) Text() string {
	var kinds []string
	for _, t := range slices.Sorted(maps.Keys(l.Types)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", l.Types[t], t))
	}
	return fmt.Sprintf("records %d to %d (%s) follow the end of a daemon at record %d, which wrote them while it ended, as earlier "+
		"versions did", l.From, l.To, strings.Join(kinds, ", "), l.Stopped)
}
