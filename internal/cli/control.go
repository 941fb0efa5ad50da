package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

// lifetime is a flag value: a duration, in days too, or "never".
type lifetime int64 // milliseconds; -1 is never

const never lifetime = -1

func (l *lifetime) String() string {
	switch *l {
	case 0:
		return ""
	case never:
		return "never"
	}
	return (time.Duration(*l) * time.Millisecond).String()
}

func (l *lifetime) Type() string { return "DURATION" }

func (l *lifetime) Set(text string) error {
	if text == "never" {
		*l = never
		return nil
	}
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n float64
		if n, err = strconv.ParseFloat(days, 64); err == nil && n >= 0 && n <= 36500 {
			d = time.Duration(n * float64(24*time.Hour))
		}
	}
	if err != nil || d < time.Second {
		return fmt.Errorf("%q is not a time of a second or more; give it as in 90s, 15m, 12h or 7d, or never", text)
	}
	*l = lifetime(d.Milliseconds())
	return nil
}

// limitFlags are the flags of what a workspace may use.
type limitFlags struct {
	memory, swap, disk size
	limits             carrelv1.Limits
	ttl, idle          lifetime
	request            string
}

func (l *limitFlags) add(f *pflag.FlagSet, defaults bool) {
	or := func(s string) string {
		if defaults {
			return " (default " + s + ")"
		}
		return ""
	}
	f.Var(&l.memory, "memory", "ceiling on memory, as in 512MiB"+or("1GiB"))
	f.Var(&l.swap, "swap", "swap that may be used beyond it"+or("none"))
	f.Int64Var(&l.limits.Pids, "pids", 0, "most processes and threads at once"+or("512"))
	f.Int64Var(&l.limits.CpuWeight, "cpu-weight", 0, "share of the processors under contention, 1 to 10000"+or("100"))
	f.Int64Var(&l.limits.OpenFiles, "open-files", 0, "most open files of a process"+or("4096"))
	f.Var(&l.disk, "disk", "what home and temporary directories may hold together, as in 10GiB; it can be raised later, not lowered or taken away"+or("no limit"))
	f.Var(&l.ttl, "ttl", "destroy it after this time, its home kept aside, as in 12h or 7d"+or("never"))
	f.Var(&l.idle, "idle-timeout", "stop it when nothing has run in it for this time"+or("the daemon's idle_timeout, 60s"))
	f.StringVar(&l.request, "request-id", "", "an id of your own: asked again with the same id, nothing is done twice")
}

func (l *limitFlags) asked() *carrelv1.Limits {
	l.limits.MemoryBytes, l.limits.SwapBytes, l.limits.DiskBytes = int64(l.memory), int64(l.swap), int64(l.disk)
	return &l.limits
}

func (a *app) pauseCommand() *cobra.Command {
	return a.changeCommand("pause", "Freeze the commands of a workspace where they stand", "paused",
		func(c *cobra.Command, ref string) (*carrelv1.Workspace, error) {
			client, err := a.client()
			if err != nil {
				return nil, err
			}
			res, err := client.Workspaces().Pause(c.Context(), connect.NewRequest(&carrelv1.PauseRequest{Workspace: ref}))
			if err != nil {
				return nil, err
			}
			return res.Msg.GetWorkspace(), nil
		})
}

func (a *app) resumeCommand() *cobra.Command {
	return a.changeCommand("resume", "Let the commands of a paused workspace go on", "running",
		func(c *cobra.Command, ref string) (*carrelv1.Workspace, error) {
			client, err := a.client()
			if err != nil {
				return nil, err
			}
			res, err := client.Workspaces().Resume(c.Context(), connect.NewRequest(&carrelv1.ResumeRequest{Workspace: ref}))
			if err != nil {
				return nil, err
			}
			return res.Msg.GetWorkspace(), nil
		})
}

func (a *app) updateCommand() *cobra.Command {
	var l limitFlags
	var key string
	c := &cobra.Command{
		Use:   "update [flags] WORKSPACE",
		Short: "Change limits, lifetime or key of a workspace, while it runs too",
		Long: `Change what the flags name and leave the rest. Memory, processes and processor share
are in force at once; open files from the next start on. A memory limit below
what the commands use is refused. A lifetime counts from now.`,
		Example: `  carrel update --memory 2GiB --pids 1000 demo
  carrel update --ttl 7d demo
  carrel update --key "telegram:-100124" chat-1a2b3c4d`,
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspace,
	}
	l.add(c.Flags(), false)
	c.Flags().StringVar(&key, "key", "", "give it this key; its derived name stays")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		changes := 0
		c.Flags().Visit(func(f *pflag.Flag) {
			if f.Name != "output" && f.Name != "request-id" && f.Name != "host" {
				changes++
			}
		})
		if changes == 0 {
			return usage(c, "cannot change nothing: name at least one of the flags")
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Workspaces().Update(c.Context(), connect.NewRequest(&carrelv1.UpdateRequest{
			Workspace: args[0], Limits: l.asked(), Key: key, TtlMs: int64(l.ttl), IdleTimeoutMs: int64(l.idle), RequestId: l.request,
		}))
		if err != nil {
			return err
		}
		w := res.Msg.GetWorkspace()
		if *out == asJSON {
			return a.printJSON(viewOf(w))
		}
		a.progress("%s is changed.", w.GetName())
		return nil
	}
	return c
}

// usageView is the JSON of a workspace's usage. A number that the host does not give is
// -1.
type usageView struct {
	Name            string     `json:"name"`
	Key             string     `json:"key"`
	State           string     `json:"state"`
	Limits          limitsView `json:"limits"`
	MemoryBytes     int64      `json:"memory_bytes"`
	MemoryPeakBytes int64      `json:"memory_peak_bytes"`
	Pids            int64      `json:"pids"`
	CPUMicros       int64      `json:"cpu_us"`
	CPUPercent      float64    `json:"cpu_percent"`
	OOMKills        int64      `json:"oom_kills"`
	ReadBytes       int64      `json:"read_bytes"`
	WrittenBytes    int64      `json:"written_bytes"`
	DiskBytes       int64      `json:"disk_bytes"`
}

func (a *app) topCommand() *cobra.Command {
	var once bool
	var every time.Duration
	c := &cobra.Command{
		Use:   "top [flags] [WORKSPACE...]",
		Short: "Show what running workspaces use",
		Long: `Show memory, processes, processor time, input and output of workspaces, or of all that
run. On a terminal it is shown anew until it is interrupted; with --once, -o json
or in a pipe it is measured over one interval and printed once.`,
		Example: `  carrel top
  carrel top --once -o json demo`,
		ValidArgsFunction: a.completeWorkspaces,
	}
	c.Flags().BoolVar(&once, "once", false, "print once and leave")
	c.Flags().DurationVar(&every, "interval", time.Second, "time between two measurements")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if every < 100*time.Millisecond {
			return usage(c, "cannot measure every %v: give 100ms or more", every)
		}
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		return a.top(ctx, args, every, *out, once || *out == asJSON || !isTerminal(a.Out))
	}
	return c
}

func (a *app) top(ctx context.Context, refs []string, every time.Duration, out format, once bool) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	measure := func() (*carrelv1.StatsResponse, error) {
		res, err := client.Workspaces().Stats(ctx, connect.NewRequest(&carrelv1.StatsRequest{Workspaces: refs}))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	last, err := measure()
	if err != nil {
		return err
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		now, err := measure()
		if errors.Is(err, context.Canceled) || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		views := usageOf(last, now)
		if out == asJSON {
			return a.printJSON(views)
		}
		if !once {
			const clear = "\x1b[H\x1b[2J"
			if _, err := a.Out.WriteString(clear); err != nil {
				return err
			}
		}
		if err := a.printUsage(views); err != nil || once {
			return err
		}
		last = now
	}
}

// usageOf is the second of two measurements, with what was used between them.
func usageOf(before, now *carrelv1.StatsResponse) []usageView {
	cpu := map[string]int64{}
	for _, u := range before.GetUsage() {
		cpu[u.GetName()] = u.GetCpuUs()
	}
	micros := float64(now.GetUnixNs()-before.GetUnixNs()) / 1000
	views := make([]usageView, 0, len(now.GetUsage()))
	for _, u := range now.GetUsage() {
		v := usageView{
			Name: u.GetName(), Key: u.GetKey(), State: u.GetState(), Limits: limitsOf(u.GetLimits()),
			MemoryBytes: u.GetMemoryBytes(), MemoryPeakBytes: u.GetMemoryPeakBytes(), Pids: u.GetPids(), CPUMicros: u.GetCpuUs(), CPUPercent: -1,
			OOMKills: u.GetOomKills(), ReadBytes: u.GetReadBytes(), WrittenBytes: u.GetWrittenBytes(), DiskBytes: u.GetDiskBytes(),
		}
		if was, ok := cpu[v.Name]; ok && was >= 0 && v.CPUMicros >= was && micros > 0 {
			v.CPUPercent = float64(v.CPUMicros-was) / micros * 100
		}
		views = append(views, v)
	}
	slices.SortFunc(views, func(x, y usageView) int { return strings.Compare(x.Key, y.Key) })
	return views
}

func (a *app) printUsage(views []usageView) error {
	t := newTable(2, "NAME", "KEY", "STATE", "CPU", "MEMORY", "LIMIT", "PIDS", "OOM", "READ", "WRITTEN", "DISK")
	amount := func(n int64) string {
		if n < 0 {
			return "-"
		}
		return bytesText(n)
	}
	count := func(n int64) string {
		if n < 0 {
			return "-"
		}
		return strconv.FormatInt(n, 10)
	}
	for _, v := range views {
		cpu := "-"
		if v.CPUPercent >= 0 {
			cpu = fmt.Sprintf("%.1f%%", v.CPUPercent)
		}
		t.add(v.Name, cut(printable(v.Key), 40), v.State, cpu, amount(v.MemoryBytes), bytesText(v.Limits.MemoryBytes),
			count(v.Pids)+"/"+strconv.FormatInt(v.Limits.Pids, 10), count(v.OOMKills), amount(v.ReadBytes), amount(v.WrittenBytes), amount(v.DiskBytes))
	}
	return t.print(a.Out)
}

// eventView is the JSON of an event, one a line.
type eventView struct {
	Number    int64     `json:"number"`
	Time      time.Time `json:"time"`
	Workspace string    `json:"workspace"`
	Key       string    `json:"key"`
	Kind      string    `json:"kind"`
	State     string    `json:"state"`
	Status    string    `json:"status"`
	Error     string    `json:"error,omitempty"`
	Principal string    `json:"principal"`
	Command   string    `json:"command_id,omitempty"`
	Intent    int64     `json:"intent"`
	Lost      int64     `json:"lost,omitempty"`
	Note      string    `json:"note,omitempty"`
}

func (a *app) eventsCommand() *cobra.Command {
	var since int64
	c := &cobra.Command{
		Use:   "events [flags] [WORKSPACE...]",
		Short: "Print what happens to workspaces, as it happens",
		Long: `Print what happens to the workspaces named, or to all that you may reach, until it is
interrupted. The daemon keeps the last 4096 events since its start, which is number 1: with
--since N it begins with what is kept after number N. What the broker put right when it
was started is among them, as broker.mended. The audit log is the record that lasts.`,
		Example: `  carrel events
  carrel events --since 1 -o json demo | jq .kind`,
		ValidArgsFunction: a.completeWorkspaces,
	}
	c.Flags().Int64Var(&since, "since", 0, "begin with what happened after this number")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		client, err := a.client()
		if err != nil {
			return err
		}
		s, err := client.Workspaces().Watch(ctx, connect.NewRequest(&carrelv1.WatchRequest{Workspaces: args, After: since}))
		if err != nil {
			return err
		}
		defer s.Close()
		lines := json.NewEncoder(a.Out)
		lines.SetEscapeHTML(false)
		for s.Receive() {
			e := s.Msg().GetEvent()
			v := eventView{
				e.GetNumber(), time.UnixMilli(e.GetUnixMs()).UTC(), e.GetWorkspace(), e.GetKey(), e.GetKind(), e.GetState(), e.GetStatus(),
				e.GetError(), e.GetPrincipal(), e.GetCommandId(), e.GetIntent(), s.Msg().GetLost(), e.GetNote(),
			}
			if *out == asJSON {
				err = lines.Encode(v)
			} else {
				err = a.printEvent(v)
			}
			if err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		return s.Err()
	}
	return c
}

func (a *app) printEvent(v eventView) error {
	if v.Lost > 0 {
		a.progress("%d events before this one are no longer kept.", v.Lost)
	}
	line := fmt.Sprintf("%6d  %s  %-13s  %-9s  %-18s  %-9s  %s", v.Number, v.Time.Format("2006-01-02 15:04:05.000"), v.Workspace, v.Principal, v.Kind, v.State, cut(printable(v.Key), 40))
	if v.Note != "" {
		line += "  " + printable(v.Note)
	}
	if v.Error != "" {
		line += "  " + v.Status + ": " + printable(v.Error)
	}
	_, err := fmt.Fprintln(a.Out, line)
	return err
}
