package broker_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/broker"
)

// The documents repeat the table of operations, their sizes and their states.
func TestDocumentsHaveTheTable(t *testing.T) {
	if _, err := os.Stat("../../../docs"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("there are no documents: a guest has only the test itself")
	}
	read := func(path string) string {
		b, err := os.ReadFile("../../../docs/" + path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	sizes, states := map[string]int{}, map[string]string{}
	row := regexp.MustCompile("(?m)^\\| (`[a-z`, ]+`) \\|.*?\\((\\d+)\\).*\\| ([^|]*?) ?\\|$")
	for _, m := range row.FindAllStringSubmatch(read("protocols/broker.md"), -1) {
		for name := range strings.SplitSeq(strings.ReplaceAll(m[1], "`", ""), ", ") {
			sizes[name], _ = strconv.Atoi(m[2])
			states[name] = m[3]
		}
	}
	if want := broker.Methods(); !maps.Equal(sizes, want) {
		t.Errorf("docs/protocols/broker.md has the params %v, the table %v", sizes, want)
	}
	for name, want := range broker.States() {
		if got := states[name]; got != strings.Join(want, ", ") {
			t.Errorf("docs/protocols/broker.md says that %s is allowed in %q, the rules say %q", name, got, want)
		}
	}
	counts := []string{"ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen"}
	n := len(broker.Methods())
	for path, text := range map[string]string{
		"protocols/broker.md": "serves " + counts[n-10] + " operations",
		"security.md":         "its " + counts[n-10] + " operations",
		"architecture.md":     strconv.Itoa(n) + " operations",
	} {
		if !strings.Contains(read(path), text) {
			t.Errorf("docs/%s does not say %q", path, text)
		}
	}
}
