// Command hostile measures whether hostile workspaces make others wait. It brings up a carrel
// of its own with workspaces of several owners, measures what honest owners do on the idle
// host, and then measures the same while a third of the workspaces is hostile in every way at
// once and daemon and broker are killed. docs/benchmarks.md says what it does.
//
//	go run ./test/hostile [-for 10m] [-workspaces 60] [-restarts 4] [-o json]
//	go run ./test/hostile -beside 'strangers,questions' [-for 10s] [-o json]
//
// It needs root, and takes away what it made, also when it is interrupted. It fails if anything
// of an honest owner was lost, or failed without a bound that the error names.
//
// It must not touch what it did not make: hostile programs act inside their workspaces, or as
// ordinary users on the socket of this carrel.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// attackArg makes this program a hostile owner; see attack.
const attackArg = "attack"

type options struct {
	life, reference      time.Duration
	workspaces, restarts int
	format, dir, logs    string
	pace                 bool
	only, except, beside []string
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == attackArg {
		if err := attack(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "hostile:", err)
			os.Exit(1)
		}
		return
	}
	o, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	ok, err := measureAll(ctx, o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("hostile", flag.ContinueOnError)
	f.DurationVar(&o.life, "for", 10*time.Minute, "how long to measure, both phases together")
	f.DurationVar(&o.reference, "reference", 0, "how long of that on the idle host (default a tenth)")
	f.IntVar(&o.workspaces, "workspaces", 60, "how many workspaces; a third is hostile")
	f.IntVar(&o.restarts, "restarts", 4, "how often the daemon is killed; the broker is killed once more, unless this is 0")
	f.BoolVar(&o.pace, "pace", false, "keep the broker's pace of creation as it is by default, which all owners share")
	only := f.String("only", "", "only the ways whose names have one of these `words`, with commas between")
	except := f.String("except", "", "none of the ways whose names have one of these `words`")
	beside := f.String("beside", "", "measure root's operations beside each burden alone whose name has one of these `words`, as "+
		"\"strangers\" or \"questions\"; -for is then the time beside each, at most 10s")
	f.StringVar(&o.format, "o", "table", "table or json")
	f.StringVar(&o.dir, "dir", "/var/tmp", "where everything is made")
	f.StringVar(&o.logs, "logs", "", "keep the logs of daemon and broker in this new `directory`")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	comma := func(r rune) bool { return r == ',' }
	o.only, o.except, o.beside = strings.FieldsFunc(*only, comma), strings.FieldsFunc(*except, comma), strings.FieldsFunc(*beside, comma)
	if len(o.beside) > 0 {
		o.life, o.workspaces = min(o.life, burdenTime), 6
	}
	if o.reference == 0 {
		o.reference = o.life / 10
	}
	if f.NArg() > 0 || o.workspaces < 6 || o.reference >= o.life || o.format != "table" && o.format != "json" {
		err := errors.New("cannot use these flags: at least 6 workspaces, a reference shorter than the whole, -o table or json")
		fmt.Fprintln(os.Stderr, "hostile:", err)
		return o, err
	}
	return o, nil
}

// measureAll does everything and prints the report. It is false if something was lost or failed.
func measureAll(ctx context.Context, o options, out, progress io.Writer) (ok bool, err error) {
	if os.Geteuid() != 0 {
		return false, errors.New("cannot bring carrel up as root: run this as root, on a machine that may be burdened")
	}
	if len(o.beside) > 0 {
		return measureBeside(ctx, o, out, progress)
	}
	h, err := newHost(ctx, o, progress)
	if err != nil {
		return false, err
	}
	rep := &report{Workspaces: o.workspaces, Hostile: o.workspaces / 3, Seconds: o.life.Seconds(), Began: time.Now().UTC()}
	err = h.measure(ctx, o, rep)
	left, downErr := h.down()
	rep.Left = left
	write := rep.table
	if o.format == "json" {
		write = rep.json
	}
	return rep.ok(), errors.Join(err, downErr, write(out))
}

// measure runs both phases and looks at what is left of the honest owners' things.
func (h *host) measure(ctx context.Context, o options, rep *report) error {
	c, err := h.settle(ctx, o)
	if err != nil {
		return err
	}
	watch := newMonitor(h)
	monitored, stop := context.WithCancel(ctx)
	defer stop()
	go watch.run(monitored)

	h.say("measuring on the idle host for %v", o.reference)
	reference := newLedger(ctx, h)
	reference.work(ctx, o.reference, c.honest)
	h.say("measuring beside %d hostile workspaces for %v", rep.Hostile, o.life-o.reference)
	hostile := newLedger(ctx, h)
	gang, err := h.attackers(c.hostile)
	if err != nil {
		return err
	}
	restarts := make(chan []restart, 1)
	go func() { restarts <- h.restarts(ctx, o) }()
	hostile.work(ctx, o.life-o.reference, c.honest)
	rep.Restarts = <-restarts
	h.say("ending the hostile owners")
	rep.Ways = gang.end()
	stop()
	rep.Gauges = watch.gauges()
	rep.Rows = rows(reference, hostile)
	rep.Errors = append(reference.texts(), hostile.texts()...)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	h.say("looking for what is lost")
	if rep.Lost, err = h.stands(ctx); err != nil {
		return err
	}
	rep.Lost = append(rep.Lost, c.lost(ctx)...)
	if rep.Record, err = h.verified(ctx); err != nil {
		rep.Lost = append(rep.Lost, fmt.Sprintf("the record does not hold: %v", err))
	}
	return nil
}
