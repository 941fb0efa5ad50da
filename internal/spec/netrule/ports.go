package netrule

import (
	"cmp"
	"slices"
	"sort"
)

// table holds the deciding rule for each port, among all rules for one name, one network or "*".
type table struct {
	// cells are sorted by port and do not overlap.
	cells []cell
}

type cell struct {
	Ports
	action Action
	text   string
}

// at returns the cell that has the port, or nil.
func (t *table) at(port uint16) *cell {
	if t == nil {
		return nil
	}
	i := sort.Search(len(t.cells), func(i int) bool { return t.cells[i].Last >= port })
	if i == len(t.cells) || t.cells[i].First > port {
		return nil
	}
	return &t.cells[i]
}

// stricter returns the cell whose action wins, a if both have the same one. Either may be nil.
func stricter(a, b *cell) *cell {
	if a == nil || b != nil && b.action.rank() > a.action.rank() {
		return b
	}
	return a
}

// verdict is what a cell that decides says; that no rule names the target if it is nil.
func (c *cell) verdict() Verdict {
	switch {
	case c == nil:
		return Verdict{Action: Deny}
	case c.action == Approved:
		return Verdict{Action: Allow, Rule: c.text}
	}
	return Verdict{Action: c.action, Rule: c.text}
}

// newTable decides each port among ranges, which may overlap: the strictest action wins, then the narrower range, then
// the smaller text, so the order of ranges does not matter. It sorts ranges in place and takes O(n log n).
func newTable(ranges []cell) *table {
	if len(ranges) == 1 {
		return &table{ranges}
	}
	slices.SortFunc(ranges, func(a, b cell) int {
		return cmp.Or(
			-cmp.Compare(a.action.rank(), b.action.rank()),
			cmp.Compare(a.Last-a.First, b.Last-b.First),
			cmp.Compare(a.text, b.text),
			cmp.Compare(a.First, b.First))
	})
	// The edges of the ranges cut the ports into pieces. Each piece takes the first range that covers it.
	// Following next from a piece leads to the next piece without a range.
	var edges []int
	for _, r := range ranges {
		edges = append(edges, int(r.First), int(r.Last)+1)
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	next, of := make([]int, len(edges)+1), make([]*cell, len(edges))
	for i := range next {
		next[i] = i
	}
	open := func(i int) int {
		for next[i] != i {
			next[i] = next[next[i]]
			i = next[i]
		}
		return i
	}
	for k := range ranges {
		from, _ := slices.BinarySearch(edges, int(ranges[k].First))
		for i := open(from); i < len(edges) && edges[i] <= int(ranges[k].Last); i = open(i) {
			of[i], next[i] = &ranges[k], i+1
		}
	}
	t := &table{}
	for i, r := range of {
		if r == nil {
			continue
		}
		p := Ports{uint16(edges[i]), uint16(edges[i+1] - 1)}
		if n := len(t.cells); n > 0 && t.cells[n-1].Last+1 == p.First && t.cells[n-1].action == r.action && t.cells[n-1].text == r.text {
			t.cells[n-1].Last = p.Last
			continue
		}
		t.cells = append(t.cells, cell{p, r.action, r.text})
	}
	return t
}
