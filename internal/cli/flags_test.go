package cli_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carrel-dev/carrel/internal/cli"
)

// What a person reads about flags, whole.
func TestErrorsOfFlags(t *testing.T) {
	serve(t, root)
	const (
		size = "it is not a size; give a whole number of bytes, or of a unit, as in 512M, 1GB or 1GiB, which count in 1024"
		life = "it is not a time of a second or more; give it as in 90s, 15m, 12h or 7d, or never"
		span = "give a time with its unit, as in 500ms, 30s, 5m or 12h"
		num  = "give a whole number, as in 20"
		some = "0 to 4096, or a share of them from 0% to 100%"
		ago  = "it is no time: give one as 2026-11-22T10:00:00Z, 2026-11-22, yesterday, or how long ago as 90m or 7d"
	)
	for _, c := range []struct{ args, want string }{
		{"create --memory lots x", `cannot use --memory "lots": ` + size},
		{"create --memory 1.5GiB x", `cannot use --memory "1.5GiB": ` + size},
		{"create --memory 1PB x", `cannot use --memory "1PB": ` + size},
		{"update --disk -1G x", `cannot use --disk "-1G": ` + size},
		{"create --swap B x", `cannot use --swap "B": ` + size},
		{"create --pids many x", `cannot use --pids "many": ` + num},
		{"update --open-files 1e3 x", `cannot use --open-files "1e3": ` + num},
		{"create --ttl tomorrow x", `cannot use --ttl "tomorrow": ` + life},
		{"create --idle-timeout 10ms x", `cannot use --idle-timeout "10ms": ` + life},
		{"exec --timeout 30 demo id", `cannot use --timeout "30": ` + span},
		{"kill --grace soon demo c-x", `cannot use --grace "soon": ` + span},
		{"top --interval 1ns", "cannot measure every 1ns: give 100ms or more"},
		{
			"create --model anthropic --model-requests 0 demo",
			`cannot use --model-requests "0": a bound of 0 would allow nothing; give 1 or more, or leave it out for no bound`,
		},
		{
			"update --model-tokens 0 demo",
			`cannot use --model-tokens "0": a bound of 0 would allow nothing; give 1 or more, or leave it out for no bound`,
		},
		{
			"run --model anthropic --model-requests 00 -- true",
			`cannot use --model-requests "00": a bound of 0 would allow nothing; give 1 or more, or leave it out for no bound`,
		},
		{
			"ask --max-tokens 1e6 x",
			`cannot use --max-tokens "1e6": it is not a whole number; give one such as 200, or leave it out for no bound`,
		},
		{"logs --tail -1 demo", `cannot use --tail "-1": it is not a number of lines; give 0 or more, as in 20, or all`},
		{"rm --purge=maybe demo", `cannot use --purge "maybe": give true or false, or the flag alone`},
		{"ls -o yaml", `cannot use --output "yaml": it is not table, wide or json`},
		{"exec --source cat demo id", `cannot use --source "cat": it is user or llm`},
		{"audit show --since tomorrow", `cannot use --since "tomorrow": ` + ago},
		{"audit tail --until 1y", `cannot use --until "1y": ` + ago},
		{"audit tail -n x", `cannot use --lines "x": ` + num},
		{
			"ask --llm m --profile workspace-write q",
			`cannot use --profile "workspace-write": there are none, read_only, system_inspect, workspace_write, privileged_passthrough`,
		},
		{"ask --llm m --forks 0 q", "cannot use --forks 0: give 1 to 100"},
		{"ask --llm m --forks -1 q", "cannot use --forks -1: give 1 to 100"},
		{"ask --llm m --forks 101 q", "cannot use 101 forks: give 1 to 100, or leave it out for 8"},
		{"ask --llm m --serial 0 q", `cannot use serial "0": give a number of hosts from 1 to 4096, or a share of them from 1% to 100%`},
		{"ask --llm m --serial 0% q", `cannot use serial "0%": give a number of hosts from 1 to 4096, or a share of them from 1% to 100%`},
		{"ask --llm m --serial 101% q", `cannot use serial "101%": give a number of hosts from 1 to 4096, or a share of them from 1% to 100%`},
		{"ask --llm m --max-failures -1 q", `cannot use max failures "-1": give a number of hosts from ` + some},
		{
			"ask --llm m --max-failures 99999999999999999999 q",
			`cannot use max failures "99999999999999999999": give a number of hosts from ` + some,
		},
		{"task run --fd 2 demo true", "cannot use --fd 2: give 3 to 63, or leave it out for stdin and stdout"},
		{"create --frob x", "cannot use --frob: carrel create has no such flag"},
		{"create x --memory", "cannot use --memory: its value is missing"},
	} {
		r := run(t, "", words(c.args)...)
		first, rest, _ := strings.Cut(r.err, "\n")
		if r.code == 0 || r.out != "" || first != "carrel: "+c.want || !strings.HasPrefix(rest, "Run \"carrel ") {
			t.Errorf("%s: %+v, want %q", c.args, r, c.want)
		}
	}
}

// Every flag that takes more than text says what it takes.
func TestEveryFlagNamesItsForms(t *testing.T) {
	flags(func(c *cobra.Command, f *pflag.Flag) {
		if strings.HasPrefix(f.Value.Type(), "string") {
			return
		}
		err := c.Flags().Set(f.Name, "?!")
		if err == nil {
			t.Errorf("%s --%s takes anything", c.CommandPath(), f.Name)
			return
		}
		text := c.FlagErrorFunc()(c, err).Error()
		rest, ok := strings.CutPrefix(text, "cannot use --"+f.Name+` "?!": `)
		if !ok || !strings.Contains(rest, "give ") && !strings.Contains(rest, "it is not table, wide or json") || strings.Contains(rest, "?!") {
			t.Errorf("%s: %s", c.CommandPath(), text)
		}
	})
}

// enumerable are the flags with values that can be listed, wherever they are.
var enumerable = []string{
	"allow", "ask", "continue", "here", "ids", "level", "model", "model-per", "model-rm", "on", "output", "print-config", "profile",
	"remote", "role", "secret", "secret-rm",
	"session", "signal", "source", "state", "type", "volume", "workspace",
}

func TestEnumerableFlagsComplete(t *testing.T) {
	flags(func(c *cobra.Command, f *pflag.Flag) {
		if _, ok := c.GetFlagCompletionFunc(f.Name); ok != slices.Contains(enumerable, f.Name) {
			t.Errorf("%s --%s: completes %v", c.CommandPath(), f.Name, ok)
		}
	})
	serve(t, root)
	for args, want := range map[string]string{
		"ask --profile":          "none\nread_only\nsystem_inspect\nworkspace_write\n",
		"create --profile":       "chat\n",
		"exec --profile":         "chat\n",
		"restore --profile":      "chat\n",
		"policy eval --profile":  "host\nremote\nworkspace\n",
		"run --ids":              "one\nrange\nauto\n",
		"create --allow":         "userns\nmounts\nio_uring\n",
		"kill -s":                "TERM\nINT\n",
		"mcp --print-config":     "claude\ncodex\nopencode\ncursor\n",
		"audit show --workspace": "demo\trunning\n",
		"audit show --level":     "SAFE\nCONFIRM\nBLOCK\n",
		"audit tail --type":      "request\napproval\nintent\n",
	} {
		r := run(t, "", append(append([]string{"__complete"}, strings.Fields(args)...), "")...)
		if r.code != 0 || !strings.HasPrefix(r.out, want) {
			t.Errorf("%s: %+v, want %q", args, r, want)
		}
	}
}

// flags calls f with every flag of every command.
func flags(f func(*cobra.Command, *pflag.Flag)) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.LocalNonPersistentFlags().VisitAll(func(x *pflag.Flag) { f(c, x) })
		for _, child := range c.Commands() {
			walk(child)
		}
	}
	walk(cli.Command())
}

func TestSizes(t *testing.T) {
	serve(t, alice)
	for text, want := range map[string]float64{
		"1GB": 1 << 30, "1GiB": 1 << 30, "1g": 1 << 30, "512M": 512 << 20, "512mb": 512 << 20, "2097152K": 2 << 30, "300000000": 300000000,
		"300000000B": 300000000, "524288kb": 512 << 20,
	} {
		var w map[string]any
		key := "size-" + text
		if r := run(t, "", "create", "--no-start", "--memory", text, key); r.code != 0 {
			t.Errorf("%s: %+v", text, r)
			continue
		}
		r := run(t, "", "inspect", "-o", "json", key)
		if err := json.Unmarshal([]byte(r.out), &w); err != nil || w["limits"].(map[string]any)["memory_bytes"] != want {
			t.Errorf("%s: %v, want %v (%v)", text, w["limits"], want, err)
		}
	}
}

// The kind of an error is for programs: people read why, without it.
func TestNoKindsAtTheEndOfErrors(t *testing.T) {
	serve(t, alice)
	kinds := []error{
		errdefs.ErrInvalidArgument, errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrPermissionDenied, errdefs.ErrFailedPrecondition,
		errdefs.ErrUnavailable, errdefs.ErrAborted, errdefs.ErrResourceExhausted, errdefs.ErrUnauthenticated,
	}
	for _, args := range []string{
		"inspect nope", "exec nope id", "logs demo", "attach demo", "logs demo c-0000000000000000", "wait c-0000000000000000",
		"create -v nothing x", "create -v /nowhere:/workspace x", "create --allow all x", "audit show",
		"--host tcp://x ls", "--host unix:///none ls", "--host unix:///none version", "--host unix:///none run -- true",
		"--rootless --host unix:///none ls", "kill demo c-x", "kill demo c-0000000000000000",
		"run --here --accept nothing -- true",
	} {
		r := run(t, "", words(args)...)
		if r.err == "" {
			t.Errorf("%s: no error: %+v", args, r)
		}
		for line := range strings.Lines(r.err + r.out) {
			line = strings.Trim(line, "\n\",")
			for _, k := range kinds {
				if strings.HasSuffix(line, ": "+k.Error()) || strings.Contains(line, ": "+k.Error()+";") || strings.Contains(line, ": "+k.Error()+":") {
					t.Errorf("%s: %q has its kind", args, line)
				}
			}
		}
	}
}
