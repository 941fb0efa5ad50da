package hostfiles

import (
	"fmt"
	"strings"
)

// Markdown returns the table for people, in the order of names.txt. Neighbours that differ in their pattern alone share a row.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| name | where | read by | when | asks | what carrel does | documented in |\n|---|---|---|---|---|---|---|\n")
	all := All()
	for i := 0; i < len(all); {
		row := all[i]
		b.WriteByte('|')
		for ; i < len(all) && sameRow(row, all[i]); i++ {
			b.WriteString(" `" + all[i].Pattern + "`")
		}
		fmt.Fprintf(&b, " | %s | %s | %s | %s | %s | %s |\n", row.where(), row.Reader, row.Trigger, row.Asks, row.does(), row.Source)
	}
	return b.String()
}

// sameRow reports whether two entries differ in nothing but their names.
func sameRow(a, b Entry) bool {
	a.Pattern, a.Exact = b.Pattern, b.Exact
	return a == b
}

func (e Entry) where() string {
	switch {
	case e.Home:
		return "top of a home"
	case e.Any:
		return "any"
	}
	return "top"
}

// does says what carrel does. Only the top of a mount is held.
func (e Entry) does() string {
	var does []string
	switch {
	case e.Act == Report:
		return "names it"
	case e.Act == Held && e.Absent == Always:
		does = append(does, "read-only, placed")
	case e.Act == Held:
		does = append(does, "read-only, placed "+e.Absent.String())
	case e.Act == HeldPresent:
		does = append(does, "read-only")
	}
	if e.Aside() {
		return strings.Join(append(does, "a new one is moved aside"), "; ")
	}
	return strings.Join(append(does, "names a new one"), "; ")
}
