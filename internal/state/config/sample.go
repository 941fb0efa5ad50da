package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Sample is a configuration file with every key, its meaning and its default. All of it is commented
// out: a line with one # is a setting, a line with two explains it.
func Sample() string {
	var b strings.Builder
	b.WriteString("## The settings of carreld, each with its default. To change one, take the # away before it, and before\n" +
		"## the line above that names its group. Check with: carreld --print-config\n")
	written := map[string]bool{}
	for _, k := range keys {
		group, _, nested := strings.Cut(k.Name, ".")
		switch {
		case !nested:
			sampleKey(&b, k, k.Name, "")
		case !written[group]:
			written[group] = true
			fmt.Fprintf(&b, "\n#%s:\n", group)
			for _, k := range keys {
				if name, ok := strings.CutPrefix(k.Name, group+"."); ok {
					sampleKey(&b, k, name, "  ")
				}
			}
		}
	}
	return b.String()
}

// plain is what YAML needs no quotes for.
var plain = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9/._,-]*$`)

func sampleKey(b *strings.Builder, k Key, name, indent string) {
	text := k.Default
	if !plain.MatchString(text) {
		text = strconv.Quote(text)
	}
	if indent == "" {
		b.WriteString("\n")
	}
	fmt.Fprintf(b, "##%s %s\n#%s%s: %s\n", indent, k.Usage, indent, name, text)
}
