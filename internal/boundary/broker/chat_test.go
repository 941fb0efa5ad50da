package broker_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// What a host can have of workspaces' users beside their own: a group of all, and a link
// where shells expect a home.
func TestGroupAndLink(t *testing.T) {
	p := newInstallation(t)
	group := fmt.Sprintf("cbt-g%d", os.Getpid())
	p.settings.WorkspaceGroup = group
	p.settings.HomeLinks = p.settings.DataDir + "/links"
	life := p.mustOpen(t)
	limits := workspace.Limits{MemoryBytes: 256 << 20, Pids: 64, CPUWeight: 100, OpenFiles: 256}
	if _, err := life.Create(t.Context(), wanted(p.name, limits), nil); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "groupadd --system "+group) {
		t.Fatalf("without the group: %v", err)
	}
	if out, err := exec.CommandContext(t.Context(), "groupadd", "--system", group).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("groupdel", group).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	link := p.settings.HomeLinks + "/" + string(p.name)
	if err := os.WriteFile(link, []byte("somebody's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := life.Create(t.Context(), wanted(p.name, limits), nil); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "move it away") {
		t.Errorf("over somebody's file: %v", err)
	}
	if b, err := os.ReadFile(link); err != nil || string(b) != "somebody's" {
		t.Errorf("somebody's file: %q, %v", b, err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	e := p.create(t, life)
	if at, err := os.Readlink(link); err != nil || at != e.Home {
		t.Errorf("the link leads to %q, %v", at, err)
	}
	if got := getent(t, "group", group); !strings.HasSuffix(got, ":"+string(p.name)) {
		t.Errorf("the group is %q", got)
	}
	start(t, life, p.name)
	if _, err := life.Destroy(t.Context(), brokerapi.DestroyParams{Name: p.name, Purge: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(link); !os.IsNotExist(err) {
		t.Errorf("the link is left: %v", err)
	}
	if got := getent(t, "group", group); !strings.HasSuffix(got, ":") {
		t.Errorf("the group is %q", got)
	}
	p.gone(t, e)
}
