package cli

import (
	"errors"
	"fmt"
	"runtime"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/build"
)

type versionView struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	// Address is where the daemon serves the API over TLS, and Fingerprint that of its key.
	Address     string `json:"address,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program and of the daemon",
		Example: "  carrel version -o json",
		Args:    exactly(),
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		v := struct {
			Client versionView  `json:"client"`
			Daemon *versionView `json:"daemon"`
			// Host is the daemon that commands speak to, Own whether it is the caller's own, and
			// Why that one.
			Host string `json:"host"`
			Own  bool   `json:"own"`
			Why  string `json:"why"`
			// Error says why the daemon's is not known.
			Error string `json:"error,omitempty"`
		}{Client: versionView{Version: build.Version(), Commit: build.Commit(), Go: runtime.Version()}}
		t, err := a.target()
		if err != nil {
			return err
		}
		v.Host, v.Own, v.Why = t.host, t.host == "", t.why
		if v.Own {
			v.Host = "unix://" + t.place.Socket
		}
		client, err := a.clientIfUp()
		if err == nil {
			v.Host = client.Host()
			var res *connect.Response[carrelv1.VersionResponse]
			if res, err = client.System().Version(c.Context(), connect.NewRequest(&carrelv1.VersionRequest{})); err == nil {
				v.Daemon = &versionView{res.Msg.GetVersion(), res.Msg.GetCommit(), res.Msg.GetGo(), res.Msg.GetAddress(), res.Msg.GetFingerprint()}
			}
		}
		if err != nil {
			if !errors.Is(err, errNotUp) && v.Own {
				return err
			}
			v.Error = err.Error()
		}
		if *out == asJSON {
			return a.printJSON(v)
		}
		table := newTable(-1, "", "VERSION", "GO")
		table.add("client", v.Client.Version, v.Client.Go)
		if v.Daemon != nil {
			table.add("daemon", v.Daemon.Version, v.Daemon.Go)
		} else {
			fmt.Fprintln(a.Err, "carrel:", message(v.Error))
		}
		if err := table.print(a.Out); err != nil {
			return err
		}
		if v.Daemon != nil && v.Daemon.Address != "" {
			if _, err := fmt.Fprintf(a.Out, "\nover TLS it is at %s, with the key %s\n", v.Daemon.Address, v.Daemon.Fingerprint); err != nil {
				return err
			}
		}
		whose := "the daemon is at "
		if v.Own {
			whose = "your own carrel is at "
		}
		_, err = fmt.Fprintln(a.Out, "\n"+whose+v.Host+": "+v.Why)
		return err
	}
	return c
}
