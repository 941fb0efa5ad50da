package changed_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/changed"
)

func reads(path string) (reader, trigger string, ok bool) {
	return "direnv", "cd", path == ".envrc" || strings.HasSuffix(path, "/.envrc")
}

func TestClassify(t *testing.T) {
	const file, link, program = unix.S_IFREG | 0o644, unix.S_IFLNK | 0o777, unix.S_IFREG | 0o755
	for _, c := range []struct {
		entry changed.Entry
		want  changed.Kind
	}{
		{changed.Entry{Path: "src/main.go", Mode: file, Links: 1}, changed.Source},
		{changed.Entry{Path: "run.sh", Mode: program, Links: 1}, changed.Source},
		{changed.Entry{Path: ".envrc", Mode: file, Links: 1}, changed.Acted},
		{changed.Entry{Path: "deep/down/.envrc", Mode: link, Target: "/etc/passwd"}, changed.Acted},
		{changed.Entry{Path: "l", Mode: link, Target: "/etc/passwd"}, changed.Leads},
		{changed.Entry{Path: "a/l", Mode: link, Target: "../../x"}, changed.Leads},
		{changed.Entry{Path: "a/l", Mode: link, Target: "../x"}, changed.Source},
		{changed.Entry{Path: "a/l", Mode: link, Target: "b/../../.."}, changed.Leads},
		{changed.Entry{Path: "fifo", Mode: unix.S_IFIFO | 0o600, Links: 1}, changed.Special},
		{changed.Entry{Path: "socket", Mode: unix.S_IFSOCK | 0o600, Links: 1}, changed.Special},
		{changed.Entry{Path: "store", Mode: file, Links: 2}, changed.Shared},
		{changed.Entry{Path: "node_modules/.bin/tsc", Mode: file, Links: 1}, changed.Runs},
		{changed.Entry{Path: "node_modules/x/index.js", Mode: file, Links: 1}, changed.Built},
		{changed.Entry{Path: ".venv/lib/site-packages/x.pth", Mode: file, Links: 1}, changed.Runs},
		{changed.Entry{Path: "target/debug/app", Mode: program, Links: 1}, changed.Runs},
		{changed.Entry{Path: "a/__pycache__/x.cpython-311.pyc", Mode: file, Links: 1}, changed.Built},
		{changed.Entry{Path: "build", Mode: file, Links: 1}, changed.Source},
	} {
		if got := changed.Classify([]changed.Entry{c.entry}, reads); got[0].Kind != c.want {
			t.Errorf("%s is %s, want %s", c.entry.Path, got[0].Kind, c.want)
		}
	}
}

func TestText(t *testing.T) {
	var list []changed.Entry
	for i := range 9 {
		list = append(list, changed.Entry{Path: fmt.Sprint(i, "/.envrc"), Mode: unix.S_IFREG, Links: 1})
	}
	for i := range 5 {
		list = append(list, changed.Entry{Path: fmt.Sprint("node_modules/.bin/", i), Mode: unix.S_IFREG, Links: 1})
	}
	list = append(list, changed.Entry{Path: "main.go", Mode: unix.S_IFREG, Links: 1},
		changed.Entry{Path: "l\n", Mode: unix.S_IFLNK, Target: "/"})
	got := changed.Text(changed.Classify(list, reads), func(s string) string { return strings.ReplaceAll(s, "\n", "?") })
	want := []string{
		"0/.envrc is acted on by direnv: cd", "1/.envrc is acted on by direnv: cd", "2/.envrc is acted on by direnv: cd",
		"3/.envrc is acted on by direnv: cd",
		"more that programs of the host act on: 4/.envrc, 5/.envrc, 6/.envrc and 2 more", "links that lead out of the directory: l?",
		"programs that git may not show: node_modules/.bin/0, node_modules/.bin/1, node_modules/.bin/2 and 2 more",
	}
	if !slices.Equal(got, want) {
		t.Errorf("it says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := changed.Text(changed.Classify(list[len(list)-2:len(list)-1], reads), nil); got != nil {
		t.Errorf("of source it says %q", got)
	}
}
