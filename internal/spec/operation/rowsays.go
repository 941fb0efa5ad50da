package operation

import (
	"slices"
	"strings"
)

func rule(r Rule) Judged { return Judged{Rules: []Rule{r}} }

func mounts(op Operation) bool { return len(op.(Create).Mounts) > 0 }

// reaches reports whether an operation lets a workspace reach something.
func reaches(op Operation) bool {
	var rules []string
	switch o := op.(type) {
	case Create:
		rules = o.Reach
	case Update:
		rules = o.Reach
	}
	return slices.ContainsFunc(rules, func(text string) bool { return !strings.HasPrefix(text, "deny ") })
}

// models reports whether an operation lets a workspace use a model.
func models(op Operation) bool {
	switch o := op.(type) {
	case Create:
		return len(o.Models) > 0
	case Update:
		return len(o.Models) > 0
	}
	return false
}

// purges reports whether an operation removes the home for good.
func purges(op Operation) bool {
	switch o := op.(type) {
	case Destroy:
		return o.Purge
	case PutAway:
		return o.Destroy
	}
	return false
}
