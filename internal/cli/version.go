package cli

import (
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
			// Error says why the daemon's is not known.
			Error string `json:"error,omitempty"`
		}{Client: versionView{build.Version(), build.Commit(), runtime.Version()}}
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.System().Version(c.Context(), connect.NewRequest(&carrelv1.VersionRequest{}))
		if err == nil {
			v.Daemon = &versionView{res.Msg.GetVersion(), res.Msg.GetCommit(), res.Msg.GetGo()}
		} else {
			v.Error = err.Error()
		}
		if *out == asJSON {
			return a.printJSON(v)
		}
		t := newTable(-1, "", "VERSION", "GO")
		t.add("client", v.Client.Version, v.Client.Go)
		if v.Daemon != nil {
			t.add("daemon", v.Daemon.Version, v.Daemon.Go)
		} else {
			fmt.Fprintln(a.Err, "carrel:", v.Error)
		}
		return t.print(a.Out)
	}
	return c
}
