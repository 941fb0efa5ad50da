package cli_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Times in tables are of one zone, and say which. Times of questions are those of the person's own clock, and job's forms have a zone.
func TestTimesSayTheirZone(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	zoneless := regexp.MustCompile(`time\.DateTime|"(?:2006-)?01-02 15:04(?::05)?(?:\.000)?"`)
	seen := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") || f.Name() == "prompt.go" {
			continue
		}
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		seen += strings.Count(string(b), ".Format(")
		if m := zoneless.Find(b); m != nil {
			t.Errorf("%s prints times without a zone: %s", f.Name(), m)
		}
	}
	if seen < 10 {
		t.Errorf("only %d times were seen", seen)
	}
}
