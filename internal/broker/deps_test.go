package broker_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/carrel-dev/carrel/"

// allowed is all that the broker may link beyond the standard library. A new row needs
// a reason, because it runs as root.
var allowed = []string{
	module + "cmd/carrel-broker",
	module + "internal/broker",
	module + "internal/brokerapi",
	module + "internal/build",
	module + "internal/fault", // text of errors; by way of internal/jsonrpc
	module + "internal/id",
	module + "internal/jsonrpc",
	module + "internal/peercred",
	module + "internal/pollfd",
	module + "internal/sandbox",
	module + "internal/sandbox/cgroup",
	module + "internal/sandbox/launch",
	module + "internal/sandbox/seccomp",
	module + "internal/sandbox/selfcheck",
	module + "internal/workspace",
	"github.com/containerd/errdefs", // error kinds
	"golang.org/x/sys/unix",         // system calls
	// By way of internal/sandbox, whose spec and control table the broker shares:
	"github.com/landlock-lsm/go-landlock/landlock",
	"github.com/landlock-lsm/go-landlock/landlock/internal",
	"github.com/landlock-lsm/go-landlock/landlock/syscall",
	"kernel.org/pub/linux/libs/security/libcap/psx",
}

// forbidden are packages of the standard library that the broker must not link, and why.
var forbidden = map[string]string{
	"net/http":      "it parses what others send, and costs 4 MiB",
	"crypto/tls":    "the broker speaks on a Unix socket only",
	"text/template": "nothing root does is composed from a template",
	"html/template": "as text/template",
	"archive/tar":   "archives are unpacked by the workspace's own user",
	"archive/zip":   "as archive/tar",
	"compress/gzip": "as archive/tar",
	"encoding/xml":  "the broker reads JSON only",
	"encoding/gob":  "the broker reads JSON only",
	"database/sql":  "the ledger is a file",
	"os/user":       "it may go through NSS modules; the broker reads /etc itself",
	"plugin":        "no code is loaded",
	"go/parser":     "no code is read",
	"regexp":        "names are checked by hand; a pattern is easily wrong",
	"net/rpc":       "the broker speaks JSON-RPC by internal/jsonrpc",
	"runtime/pprof": "nothing is served but the table",
	"expvar":        "nothing is served but the table",
	"testing":       "test code does not run as root",
}

func deps(t *testing.T, args ...string) []string {
	t.Helper()
	if os.Getenv("CARREL_TEST_BIN") != "" {
		t.Skip("skipped: dependencies are listed where the source is built")
	}
	c := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

func TestDependencies(t *testing.T) {
	std := deps(t, "std")
	all := deps(t, "-deps", module+"cmd/carrel-broker")
	for _, bad := range judge(all, std) {
		t.Error(bad)
	}
	// The guard sees what is planted.
	for _, p := range []string{"net/http", "gopkg.in/yaml.v3", module + "internal/policy", "os/user"} {
		if len(judge(append(slices.Clone(all), p), std)) == 0 {
			t.Errorf("%s would pass", p)
		}
	}
}

func judge(all, std []string) []string {
	var bad []string
	for _, p := range all {
		if why, ok := forbidden[p]; ok {
			bad = append(bad, "the broker links "+p+": "+why)
		} else if !slices.Contains(std, p) && !strings.HasPrefix(p, "vendor/") && !slices.Contains(allowed, p) {
			bad = append(bad, "the broker links "+p+", which is not in the list")
		}
	}
	return bad
}

// TestOnlyUsersRunsPrograms: os/exec is for the tools that change the user database.
func TestOnlyUsersRunsPrograms(t *testing.T) {
	for _, p := range deps(t, "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}:{{join .Imports \",\"}}{{end}}", module+"cmd/carrel-broker") {
		path, imports, _ := strings.Cut(p, ":")
		if slices.Contains(strings.Split(imports, ","), "os/exec") && path != module+"internal/broker" {
			t.Errorf("%s imports os/exec", path)
		}
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f.Name())
		if err != nil || strings.HasSuffix(f.Name(), "_test.go") || f.IsDir() {
			continue
		}
		if strings.Contains(string(b), `"os/exec"`) && f.Name() != "users.go" {
			t.Errorf("%s imports os/exec", f.Name())
		}
	}
}
