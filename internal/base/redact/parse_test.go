package redact_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
)

func TestParse(t *testing.T) {
	values, short, err := redact.Parse("# of the operator\n\n  correct horse  \r\nDB_PASSWORD=hunter22\n" +
		"export TOKEN='it is quoted'\nQ=\"a\\\"b\\\\c\\$d\"\nc2VjcmV0cw==\n" +
		"YWJjZGVmZ2g=\nPORT=80\nDEBUG=\nurl=postgres://u:p@h/d?x=y\nno-name=value\n1st=value\nlast one")
	want := []string{
		"correct horse", "hunter22", "it is quoted", `a"b\c$d`, "c2VjcmV0cw==", "YWJjZGVmZ2g=",
		"postgres://u:p@h/d?x=y", "no-name=value", "1st=value", "last one",
	}
	if err != nil || short != 2 || !slices.Equal(values, want) {
		t.Errorf("%q %d %v", values, short, err)
	}
	for text, why := range map[string]string{
		"good one\nhunt\n":                         "line 2 for a secret: it is shorter than 6 bytes",
		"hunter\x00two\n":                          "line 1 for a secret: it has a zero byte",
		"\n" + strings.Repeat("hunter", 1000):      "line 2 for a secret: it is longer than 4096 bytes",
		strings.Repeat("hunter2\n", 10_001):        "line 10001 for a secret: there are more than 10000",
		"TOKEN=hunter2\nhunt\nOTHER=hunter2hunter": "line 2 for a secret",
	} {
		if _, _, err := redact.Parse(text); !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "hunt") {
			t.Errorf("%v", err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a=b\nexport X='y z w v'\n\"\"\n")
	f.Add("c2VjcmV0cw==\n# x\nT=\"\\\"")
	f.Fuzz(func(t *testing.T, text string) {
		values, _, err := redact.Parse(text)
		if err != nil && values != nil {
			t.Error("some are returned beside an error")
		}
		r := redact.New([]byte("k"))
		if short := r.Know("test", values...); short != 0 {
			t.Errorf("%d of %q are not looked for", short, values)
		}
	})
}
