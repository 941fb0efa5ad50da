package cli_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/build"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func TestVersion(t *testing.T) {
	serve(t, alice)
	if r := run(t, "", "version"); r.code != 0 || !strings.Contains(r.out, "daemon  v1.2.3") {
		t.Errorf("version: %+v", r)
	}
	if r := run(t, "", "version", "--host", "unix:///none", "-o", "json"); r.code != 0 || !strings.Contains(r.out, `"daemon": null`) ||
		!strings.Contains(r.out, "no such socket") {
		t.Errorf("version without a daemon: %+v", r)
	}
}

// The flag asks no daemon.
func TestVersionFlag(t *testing.T) {
	t.Setenv(carrel.HostEnv, "nonsense")
	if r := run(t, "", "--version"); r.code != 0 || r.out != "carrel version "+build.Version()+"\n" || r.err != "" {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "-V"); r.code != 1 || !strings.Contains(r.err, "cannot use -V: carrel has no such flag") {
		t.Errorf("-V: %+v", r)
	}
}
