package hostfiles

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Parse reads entries in the form that names.txt describes. Errors are of kind errdefs.ErrInvalidArgument and give the line.
func Parse(text string) (all []Entry, err error) {
	date, n := "", 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if d, ok := strings.CutPrefix(line, "date "); ok {
			date = d
			continue
		}
		entries, err := parseLine(line)
		if err == nil {
			err = admit(all, entries, date)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the names at line %d: %w: %w", n, err, errdefs.ErrInvalidArgument)
		}
		for _, e := range entries {
			e.Date = date
			all = append(all, e)
		}
	}
	return all, nil
}

// columns are the fields of a line.
const columns = 7

func parseLine(line string) ([]Entry, error) {
	f := strings.Split(line, "|")
	if len(f) != columns {
		return nil, fmt.Errorf("it has %d columns and not %d", len(f), columns)
	}
	for i := range f {
		if f[i] = strings.TrimSpace(f[i]); f[i] == "" {
			return nil, fmt.Errorf("column %d is empty", i+1)
		}
	}
	e := Entry{Reader: f[4], Trigger: f[5], Source: f[6]}
	if err := e.set(f[1], f[2], f[3]); err != nil {
		return nil, err
	}
	var all []Entry
	for p := range strings.FieldsSeq(f[0]) {
		e.Pattern, e.Exact = strings.CutPrefix(p, "=")
		if err := e.check(); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// set reads the columns where, act and asks.
func (e *Entry) set(where, act, asks string) error {
	e.Any, e.Home = where == "any", where == "home"
	if !e.Any && !e.Home && where != "top" {
		return fmt.Errorf("where is %q and not top, any or home", where)
	}
	kind, bare := strings.CutSuffix(act, "-bare")
	i, j := slices.Index(actNames, kind), slices.Index(asksNames, asks)
	if i < 0 || j < 0 || bare && Act(i) != Held {
		return fmt.Errorf("act %q or asks %q is unknown", act, asks)
	}
	e.Act, e.Asks = Act(i), Asks(j)
	switch {
	case e.Act != Held:
	case bare:
		e.Absent = NoRepository
	case e.Home:
		e.Absent = InHome
	default:
		e.Absent = Always
	}
	return nil
}

// allowed says for what Asks which acts are possible: a reader that does not ask is never only reported, and one whose name is as
// good as source is nothing more.
var allowed = [...][]Act{
	Unasked:   {Back, HeldPresent, Held},
	ByPath:    {Back, HeldPresent, Held},
	ByContent: {Report, HeldPresent, Held},
	AsSource:  {Report},
}

func (e *Entry) check() error {
	if !slices.Contains(allowed[e.Asks], e.Act) {
		return fmt.Errorf("%s: a reader that asks %s cannot have the act %s", e.Pattern, e.Asks, e.Act)
	}
	dir, last := split(e.Pattern)
	before, after, _ := strings.Cut(last, "*")
	if strings.Contains(dir+after, "*") || len(before) < 2 && len(after) < 2 && before != last || e.Exact && last != e.Pattern {
		return fmt.Errorf("%s: only a last part may have a *, one, with two letters beside it; an exact name has one part", e.Pattern)
	}
	// The directory above a name with two parts could be renamed with the mount on it.
	if e.Act >= HeldPresent && (dir != "" || e.Exact || strings.Contains(last, "*")) {
		return fmt.Errorf("%s: only a plain name can be held", e.Pattern)
	}
	for part := range strings.SplitSeq(e.Pattern, "/") {
		if folded := string(fold(nil, part)); folded == "" || folded != strings.ToLower(part) {
			return fmt.Errorf("%s: a part is empty, or is no plain ASCII", e.Pattern)
		}
	}
	return nil
}

// admit refuses entries that stand twice or have no date.
func admit(all, add []Entry, date string) error {
	if len(date) != len("2006-01-02") || strings.Trim(date, "0123456789-") != "" {
		return fmt.Errorf("date %q before it is not YYYY-MM-DD", date)
	}
	for i, e := range add {
		same := func(o Entry) bool {
			return o.Pattern == e.Pattern && o.Exact == e.Exact && o.Any == e.Any && o.Home == e.Home
		}
		if slices.ContainsFunc(all, same) || slices.ContainsFunc(add[:i], same) {
			return fmt.Errorf("%s stands twice", e.Pattern)
		}
	}
	return nil
}

// split cuts the last part off a path.
func split(path string) (dir, last string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)], path[i+1:]
}
