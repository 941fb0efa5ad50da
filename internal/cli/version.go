package cli

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

func (a *app) versionCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:     "version",
		Short:   help(operation.Version),
		Example: "  carrel version -o json",
		Args:    exactly(),
	}, func(c *cobra.Command, _ []string) (any, printer, error) {
		t, err := a.target()
		if err != nil {
			return nil, nil, err
		}
		own, host := t.host == "", t.host
		if own {
			host = "unix://" + t.own.Socket
		}
		var m *carrelv1.VersionResponse
		client, err := a.clientIfUp()
		if err == nil {
			host = client.Host()
			m, err = askOf(c.Context(), client, system.Version, &carrelv1.VersionRequest{})
		}
		if err != nil && own && !errors.Is(err, errNotUp) {
			return nil, nil, err
		}
		o := object{{"client", object{{"version", build.Version()}, {"commit", build.Commit()}, {"go", runtime.Version()}}}, {"daemon", nil}}
		table := newTable(-1, "", "VERSION", "GO")
		table.add("client", build.Version(), runtime.Version())
		tail := ""
		if m != nil {
			o = o.with("daemon", objectOf(m))
			table.add("daemon", m.GetVersion(), m.GetGo())
			if m.GetAddress() != "" {
				tail = fmt.Sprintf("\nover TLS it is at %s, with the key %s\n", m.GetAddress(), m.GetFingerprint())
			}
			if m.GetDiskFull() != "" {
				tail += "\n" + printable(m.GetDiskFull()) + "\n"
			}
		}
		o = append(o, object{{"host", host}, {"own", own}, {"why", t.why}}...)
		if err != nil {
			o = o.with("error", errtext.Text(err))
		}
		whose := "the daemon is at "
		if own {
			whose = "your own carrel is at "
		}
		return o, both{noted{a, err}, both{table, text(tail + "\n" + whose + host + ": " + t.why + "\n")}}, nil
	})
}

// noted prints an error that does not end the command to stderr.
type noted struct {
	a   *app
	err error
}

func (n noted) render(*os.File) error {
	if n.err != nil {
		fmt.Fprintln(n.a.Err, "carrel:", errorText(n.err))
	}
	return nil
}
