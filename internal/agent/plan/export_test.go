package plan

// Forms lists for each type a new value of its struct and the members that the table has.
func Forms() map[Type]struct {
	Value   any
	Members []string
	Nested  map[string][]string
} {
	all := map[Type]struct {
		Value   any
		Members []string
		Nested  map[string][]string
	}{}
	for i := range forms {
		f := &forms[i]
		a := Answer{Type: f.typ}
		e := all[f.typ]
		e.Value, e.Members, e.Nested = a.form(), []string{"type"}, map[string][]string{}
		for j := range f.members {
			m := &f.members[j]
			e.Members = append(e.Members, m.name)
			for k := range m.of {
				e.Nested[m.name] = append(e.Nested[m.name], m.of[k].name)
			}
		}
		all[f.typ] = e
	}
	return all
}
