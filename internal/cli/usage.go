package cli

import (
	"context"
	"fmt"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

func (a *app) topCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "top [flags] [WORKSPACE...]",
		Aliases: []string{"stats"}, // docker's word
		Short:   help(operation.StatWorkspace),
		Long: `Show memory, processes, processor time, input and output of workspaces, or of all that
run. On a terminal it is refreshed until you press q or interrupt it; with --once, -o json
or in a pipe it is measured over one interval and printed once.`,
		Example: `  carrel top
  carrel top --once -o json demo`,
		ValidArgsFunction: a.completeWorkspaces(),
	}
	return a.refreshed(c, a.top)
}

// refreshed has show print what a command measures, at an interval, until q is pressed or it is interrupted. Without a
// terminal it does once.
func (a *app) refreshed(c *cobra.Command,
	show func(ctx context.Context, args []string, every time.Duration, out format, once bool) error,
) *cobra.Command {
	var once bool
	var every time.Duration
	c.Flags().BoolVar(&once, "once", false, "print once and exit")
	c.Flags().DurationVar(&every, "interval", time.Second, "time between two measurements")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if every < 100*time.Millisecond {
			return usage(c, "cannot measure every %v: give 100ms or more", every)
		}
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		once = once || *out == asJSON || !isTerminal(a.Out)
		if !once {
			end, err := a.onKey('q', stop)
			if err != nil {
				return err
			}
			defer end()
		}
		err := show(ctx, args, every, *out, once)
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	return c
}

func (a *app) top(ctx context.Context, refs []string, every time.Duration, out format, once bool) error {
	measure := func() (*carrelv1.StatsResponse, error) {
		return ask(ctx, a, workspaces.Stats, &carrelv1.StatsRequest{Workspaces: refs})
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
		if err != nil {
			return err
		}
		if out == asJSON {
			views := []object{}
			for _, u := range usageOf(last, now) {
				views = append(views, objectOf(u.Usage).with("cpu_percent", u.percent))
			}
			return a.printJSON(views)
		}
		if !once {
			const clear = "\x1b[H\x1b[2J"
			if _, err := a.Out.WriteString(clear); err != nil {
				return err
			}
		}
		if err := a.printUsage(usageOf(last, now), out); err != nil || once {
			return err
		}
		last = now
	}
}

// measured is what a workspace uses, with its share of a processor between two
// measurements, in percent. -1 is what the host does not tell.
type measured struct {
	*carrelv1.Usage
	percent float64
}

// usageOf is the second of two measurements, with what was used between them.
func usageOf(before, now *carrelv1.StatsResponse) []measured {
	cpu := map[string]int64{}
	for _, u := range before.GetUsage() {
		cpu[u.GetName()] = u.GetCpuUs()
	}
	micros := float64(now.GetUnixNs()-before.GetUnixNs()) / 1000
	var all []measured
	for _, u := range now.GetUsage() {
		percent := -1.0
		if was, ok := cpu[u.GetName()]; ok && was >= 0 && u.GetCpuUs() >= was && micros > 0 {
			percent = float64(u.GetCpuUs()-was) / micros * 100
		}
		all = append(all, measured{u, percent})
	}
	slices.SortFunc(all, func(x, y measured) int { return strings.Compare(x.GetKey(), y.GetKey()) })
	return all
}

func (a *app) printUsage(all []measured, f format) error {
	known := func(n int64, text func(int64) string) string {
		if n < 0 {
			return "-"
		}
		return text(n)
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	t := newTable(2, "NAME", "KEY", "STATE", "CPU", "MEMORY", "LIMIT", "PIDS", "OOM", "READ", "WRITTEN", "DISK").
		wideOnly("LIMIT", "OOM", "READ", "WRITTEN")
	for _, u := range all {
		cpu := "-"
		if u.percent >= 0 {
			cpu = fmt.Sprintf("%.1f%%", u.percent)
		}
		t.add(u.GetName(), keyText(u.GetKey()), u.GetState(), cpu, known(u.GetMemoryBytes(), bytesText),
			bytesText(u.GetLimits().GetMemoryBytes()),
			known(u.GetPids(), number)+"/"+number(u.GetLimits().GetPids()), known(u.GetOomKills(), number),
			known(u.GetReadBytes(), bytesText), known(u.GetWrittenBytes(), bytesText), known(u.GetDiskBytes(), bytesText))
	}
	return f.print(t, a.Out)
}

func (a *app) eventsCommand() *cobra.Command {
	var since int64
	c := &cobra.Command{
		Use:   "events [flags] [WORKSPACE...]",
		Short: help(operation.WatchWorkspace),
		Long: `Print what happens to the workspaces named, or to all that you may reach, until it is
interrupted. The daemon keeps the last 4096 events since its start, which is number 1: with
--since N it begins with those kept after number N. What the broker repaired when it
started is among them, as broker.mended. The audit log is the record that lasts.`,
		Example: `  carrel events
  carrel events --since 1 -o json demo | jq .kind`,
		ValidArgsFunction: a.completeWorkspaces(),
	}
	c.Flags().Int64Var(&since, "since", 0, "begin with what happened after this number")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		err := receive(ctx, a, workspaces.Watch, &carrelv1.WatchRequest{Workspaces: args, After: since}, func(m *carrelv1.WatchResponse) error {
			if *out == asJSON {
				return jsonLine(a.Out, eventObject(m))
			}
			return a.printEvent(m.GetEvent(), m.GetLost())
		})
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	return c
}

// eventObject is the JSON of an event, without the members that say nothing.
func eventObject(m *carrelv1.WatchResponse) object {
	var o object
	for _, f := range objectOf(m.GetEvent()).with("lost", m.GetLost()) {
		switch f.name {
		case "at":
			f.name = "time"
		case "error", "command_id", "note", "lost":
			if f.value == "" || f.value == int64(0) {
				continue
			}
		}
		o = append(o, f)
	}
	return o
}

func (a *app) printEvent(e *carrelv1.Event, lost int64) error {
	if lost > 0 {
		a.progress("No longer kept: %s before this one.", counted(lost, "event"))
	}
	line := fmt.Sprintf("%6d  %s  %-13s  %-9s  %-18s  %-9s  %s", e.GetNumber(), at(e.GetUnixMs()).Format(stamp),
		e.GetWorkspace(), e.GetPrincipal(), e.GetKind(), e.GetState(), keyText(e.GetKey()))
	if e.GetNote() != "" {
		line += "  " + printable(e.GetNote())
	}
	if e.GetError() != "" {
		line += "  " + e.GetStatus() + ": " + printable(e.GetError())
	}
	_, err := fmt.Fprintln(a.Out, line)
	return err
}
