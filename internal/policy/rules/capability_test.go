package rules_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

func TestTableOfCapabilities(t *testing.T) {
	name := regexp.MustCompile(`^[a-z_]+(\.[a-z_]+)?$`)
	seen := map[string]bool{}
	for c, info := range rules.Capabilities {
		if !name.MatchString(info.Name) {
			t.Errorf("capability %d has the name %q", c, info.Name)
		}
		if seen[info.Name] {
			t.Errorf("%s is defined twice", info.Name)
		}
		seen[info.Name] = true
		got, ok := rules.CapabilityByName(info.Name)
		if c != 0 && (!ok || int(got) != c) {
			t.Errorf("%s is found as %v, %v", info.Name, got, ok)
		}
		if info.Harmless && info.Destructive {
			t.Errorf("%s is both harmless and destructive", info.Name)
		}
	}
	if _, ok := rules.CapabilityByName("filesystem.dream"); ok {
		t.Error("a capability that does not exist is found")
	}
	if len(rules.Capabilities) > 64 {
		t.Error("a Set holds 64")
	}
	s := rules.SetOf(rules.SecretRead, rules.FilesystemRead, rules.NoCapability)
	if n := s.Names(); len(n) != 2 || n[0] != "filesystem.read" || n[1] != "secret.read" {
		t.Errorf("names of a set: %v", n)
	}
}

// TestDocumentOfCapabilities holds that the document has a row for each, in the same order.
func TestDocumentOfCapabilities(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/policy/capabilities.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(.*?)` \\| (.+) \\| (.*) \\|$").FindAllStringSubmatch(string(doc), -1)
	if len(rows) != len(rules.Capabilities)-1 {
		t.Fatalf("docs/policy/capabilities.md has %d rows for %d capabilities", len(rows), len(rules.Capabilities)-1)
	}
	for i, info := range rules.Capabilities[1:] {
		kind := ""
		if info.Harmless {
			kind = "harmless"
		} else if info.Destructive {
			kind = "destructive"
		}
		if got := rows[i]; got[1] != info.Name || strings.TrimSpace(got[2]) == "" || strings.TrimSpace(got[3]) != kind {
			t.Errorf("row %d of docs/policy/capabilities.md is %q, not %s %s", i+1, got[0], info.Name, kind)
		}
	}
}
