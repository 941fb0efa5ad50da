package root_test

import (
	"context"
	"io/fs"
	"os"
	"sync"
	"testing"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Output of a workspace's commands, kept, captured and followed, does not end its executor: after
// each attack the workspace takes commands, and one that was started before still runs.
func TestOutputDoesNotEndTheExecutor(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	before := d.detach(t, "/bin/sh", "-c", "echo before; exec sleep 1000")
	client := func() carrelv1connect.CommandServiceClient {
		return carrelv1connect.NewCommandServiceClient(h.client(t, 0), "http://carrel")
	}
	shell := func(script string) *carrelv1.Command {
		return &carrelv1.Command{Argv: []string{"/bin/sh", "-c", script}}
	}
	detach := func(script string, limit int64) string {
		t.Helper()
		r, err := client().Detach(t.Context(), connect.NewRequest(&carrelv1.DetachRequest{
			Workspace: d.Key, Command: shell(script), OutputLimit: limit,
		}))
		if err != nil {
			t.Fatal(err)
		}
		return r.Msg.GetCommandId()
	}
	ended := func(command string) {
		t.Helper()
		if _, err := client().Wait(t.Context(), connect.NewRequest(&carrelv1.WaitRequest{Workspace: d.Key, CommandId: command})); err != nil {
			t.Fatal(err)
		}
	}
	for _, attack := range []struct {
		what string
		make func()
	}{
		{"34 ended commands of 1 MiB", func() {
			for range 34 {
				ended(detach("head -c 1048576 /dev/zero", 1<<20))
			}
		}},
		{"60 MB where 16 MiB are kept", func() { ended(detach("head -c 60000000 /dev/zero", execapi.MaxOutput)) }},
		{"240 captures of 2 x 400 kB", func() {
			var all sync.WaitGroup
			for range 240 {
				all.Go(func() {
					r, err := client().Exec(t.Context(), connect.NewRequest(&carrelv1.ExecRequest{
						Workspace: d.Key, Command: shell("head -c 400000 /dev/zero; head -c 400000 /dev/zero >&2; sleep 2"),
					}))
					if err != nil {
						t.Errorf("a command among many: %v", err)
					} else if got := int64(len(r.Msg.GetStdout())) + r.Msg.GetStdoutLost(); got != 400_000 {
						t.Errorf("%d of 400000 bytes are accounted for", got)
					}
				})
			}
			all.Wait()
		}},
		{"1,500 followers", func() {
			loud := detach("head -c 1000000 /dev/zero; exec sleep 1000", 1<<20)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			follow := client()
			served, refused := 0, 0
			for i := range 1500 {
				if i%50 == 0 {
					follow = client()
				}
				s, err := follow.Logs(ctx, connect.NewRequest(&carrelv1.LogsRequest{Workspace: d.Key, CommandId: loud, Follow: true}))
				if err == nil && !s.Receive() {
					err = s.Err()
				}
				switch {
				case err == nil:
					served++
				case connect.CodeOf(err) == connect.CodeResourceExhausted:
					refused++
				default:
					t.Fatalf("follower %d: %v", i, err)
				}
			}
			if served != execapi.MaxFollowers || refused != 1500-served {
				t.Errorf("%d follow, %d were refused", served, refused)
			}
		}},
	} {
		attack.make()
		if t.Failed() {
			t.Fatalf("after %s", attack.what)
		}
		d.well(t)
		until(t, "the output of the command that was started before", func() bool { // followers leave first
			return h.try(nil, "", "logs", d.Key, before).out == "before\n"
		})
		if out := d.sh(t, "pgrep -c -f 'sleep 1000'"); out == "0" {
			t.Fatalf("after %s the command that was started before has ended", attack.what)
		}
	}
	for _, name := range []string{"daemon.log", "daemon.log.1"} { // the second is for the rotation
		fi, err := os.Stat(h.data + "/log/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode() != fs.FileMode(0o600) {
			t.Errorf("%s has mode %v", name, fi.Mode())
		}
	}
}
