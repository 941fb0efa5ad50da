package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

// tellKept says that a workspace was there already, and which settings that were asked for it has otherwise and keeps.
func (a *app) tellKept(f *pflag.FlagSet, req *carrelv1.CreateRequest, w *carrelv1.Workspace) {
	asked, has := req.GetLimits(), w.GetLimits()
	count := func(n int64) string { return fmt.Sprint(n) }
	var differs []string
	for _, s := range []struct {
		flag       string
		asked, has int64
		text       func(int64) string
	}{
		{"memory", asked.GetMemoryBytes(), has.GetMemoryBytes(), bytesText},
		{"swap", asked.GetSwapBytes(), has.GetSwapBytes(), bytesText},
		{"disk", asked.GetDiskBytes(), has.GetDiskBytes(), bytesText},
		{"pids", asked.GetPids(), has.GetPids(), count},
		{"cpu-weight", asked.GetCpuWeight(), has.GetCpuWeight(), count},
		{"open-files", asked.GetOpenFiles(), has.GetOpenFiles(), count},
		{"idle-timeout", req.GetIdleTimeoutMs(), w.GetIdleTimeoutMs(), idleText},
	} {
		if f.Changed(s.flag) && s.asked != s.has {
			differs = append(differs, fmt.Sprintf("--%s is %s, and not %s", s.flag, s.text(s.has), s.text(s.asked)))
		}
	}
	if req.GetProfile() != "" && req.GetProfile() != w.GetProfile() {
		have := "none"
		if w.GetProfile() != "" {
			have = printable(w.GetProfile())
		}
		differs = append(differs, fmt.Sprintf("--profile is %s, and not %s", have, printable(req.GetProfile())))
	}
	if len(differs) == 0 {
		a.progress("The workspace was there already.")
		return
	}
	_ = say(a.Err, "carrel: %s was there already, and stays as it is: %s; carrel update changes limits\n", keyText(w.GetKey()),
		strings.Join(differs, "; "))
}

func idleText(ms int64) string {
	if ms < 0 {
		return "never"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}
