package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// doctorTimeout is for the daemon; the probes take a few milliseconds.
const doctorTimeout = 500 * time.Millisecond

// doctorView is the JSON of doctor.
type doctorView struct {
	// OK: every check that a daemon requires is yes or partly. Rootless: every check that
	// "carrel run" requires as an ordinary user is. The exit code follows OK for root, and
	// Rootless for other users.
	OK       bool           `json:"ok"`
	Rootless bool           `json:"rootless"`
	Checks   []probe.Result `json:"checks"`
}

func (a *app) doctorCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check what this host supports, and what to do about the rest",
		Long: `Test what workspaces require of this host and whether carrel runs, and print what is
missing with the command that repairs it; -v prints every check. The exit code is 1 if
something required is missing: as root for "carrel up", as an ordinary user for
"carrel run". As root it can test more.

With --repair it drops the lines of the broker's ledger that cannot be read, keeps the
ledger as it was beside it, and tests nothing. The broker must not run. The next
"carrel up" learns from users and homes what is lost.`,
		Example: `  sudo carrel doctor
  carrel doctor -v
  sudo carrel doctor --repair && sudo carrel up --detach
  carrel doctor -o json | jq '.checks[] | select(.state != "yes")'`,
		Args: exactly(),
	}
	i := instanceFlags(c)
	c.Flags().BoolVarP(&all, "verbose", "v", false, "print what was found by every check")
	out := outputFlag(c)
	fix := c.Flags().Bool("repair", false, "repair the broker's ledger (root)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := i.absolute(); err != nil {
			return err
		}
		if *fix {
			return a.repair(c.Context(), i)
		}
		ctx, cancel := context.WithTimeout(c.Context(), doctorTimeout)
		defer cancel()
		cfg := i.probeConfig()
		if daemon, err := findProgram("carreld"); err == nil {
			cfg.Programs = append(cfg.Programs, daemon)
		}
		results := probe.Run(ctx, cfg)
		v := doctorView{OK: len(probe.Unmet(results)) == 0, Rootless: len(probe.UnmetRootless(results)) == 0}
		answers, version := a.checkDaemon(ctx)
		v.Checks = append(results, checkPrograms(), i.checkData(), answers)
		for _, check := range []func() (probe.Result, bool){
			func() (probe.Result, bool) { return i.checkBroker(c.Context()) },
			func() (probe.Result, bool) { return i.checkDisk(version, results) },
			func() (probe.Result, bool) { return i.checkIDs(cfg.FirstID, cfg.IDs) },
			func() (probe.Result, bool) { return a.checkAudit(c.Context()) },
		} {
			if r, ok := check(); ok {
				v.Checks = append(v.Checks, r)
			}
		}
		if os.Geteuid() == 0 && !v.OK || os.Geteuid() != 0 && !v.Rootless {
			a.code = exitFailure
		}
		if *out == asJSON {
			return a.printJSON(v)
		}
		_, err := a.Out.WriteString(doctorText(v, all))
		return err
	}
	return c
}

// repair has the broker's program repair its ledger, which it refuses while a broker runs.
func (a *app) repair(ctx context.Context, i *instance) error {
	if os.Geteuid() != 0 {
		return needRoot("doctor --repair" + i.flags())
	}
	program, err := findProgram("carrel-broker")
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, program, "--settings", i.settings(), "--repair")
	c.Env, c.Stdout, c.Stderr = []string{}, a.Out, a.Err
	if err := c.Run(); err != nil {
		return fmt.Errorf("cannot repair what %s has: what it said is above: %w", i.data, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// doctorText is what doctor prints: what is missing, or every check, and a verdict for root and for
// ordinary users.
func doctorText(v doctorView, all bool) string {
	var b strings.Builder
	met := 0
	for _, r := range v.Checks {
		if r.State == probe.Yes {
			if met++; !all {
				continue
			}
		}
		found := r.Found
		if r.State != probe.Yes {
			found += "; it is needed for " + r.Needed
		}
		b.WriteString(finding(string(r.State), r.ID, found, r.Remedy))
	}
	fmt.Fprintf(&b, "%d of %s met", met, counted(len(v.Checks), "check"))
	if !all && met > 0 {
		b.WriteString("; -v shows them")
	}
	b.WriteString(".\n")
	fmt.Fprintf(&b, "With root (carrel up):      %s\n", verdict(v.Checks, func(r probe.Result) bool { return r.Required && r.ID != "root" }))
	fmt.Fprintf(&b, "Without root (carrel run):  %s\n", verdict(v.Checks, func(r probe.Result) bool { return r.Rootless }))
	return b.String()
}

// verdict says whether workspaces work in a mode, by the checks that it needs.
func verdict(checks []probe.Result, needs func(probe.Result) bool) string {
	var missing []string
	for _, r := range checks {
		if needs(r) && r.State == probe.No {
			missing = append(missing, r.ID)
		}
	}
	if len(missing) > 0 {
		return "does not work here: " + strings.Join(missing, ", ")
	}
	return "works here"
}

// checkBroker looks for the broker of an instance that is up.
func (i *instance) checkBroker(ctx context.Context) (probe.Result, bool) {
	r := probe.Result{ID: "broker", Needed: "starting, stopping, creating and destroying workspaces", State: probe.Yes}
	units := i.services(ctx)
	if p, held, ok := i.running("broker"); ok {
		held.Close()
		r.Found = fmt.Sprintf("runs, pid %d", p.PID)
		return r, true
	}
	if slices.Contains(units, brokerUnit) {
		r.Found = "runs, as " + brokerUnit
		return r, true
	}
	if _, held, ok := i.running("daemon"); ok {
		held.Close()
	} else if len(units) == 0 {
		return r, false // this instance is not up
	}
	r.State, r.Found, r.Remedy = probe.No, "the daemon runs and the broker does not", "sudo carrel up --detach"+i.flags()
	if len(units) > 0 {
		r.Remedy = "sudo systemctl start " + serviceTarget + "; see why it ended with: journalctl -u carrel-broker"
	}
	return r, true
}

func checkPrograms() probe.Result {
	r := probe.Result{ID: "programs", Needed: "carrel up", State: probe.Yes}
	programs, err := findPrograms()
	if err != nil {
		r.State, r.Found, r.Remedy = probe.No, errtext.Text(err), "make build, or install the package"
		return r
	}
	r.Found = programs["carrel-broker"]
	for _, p := range programs {
		st, err := os.Stat(p)
		if err == nil && st.Mode()&0o022 != 0 {
			r.State, r.Found, r.Remedy = probe.No, fmt.Sprintf("others can write %s (mode %04o), which root runs",
				p, st.Mode().Perm()), "chmod go-w "+shellQuote([]string{p})
		}
	}
	return r
}

// checkData checks the data directory, if it exists.
func (i *instance) checkData() probe.Result {
	r := probe.Result{ID: "data_directory", Needed: "carrel up", State: probe.Yes, Found: i.data + " is not there yet; up makes it"}
	if _, err := os.Lstat(i.data); err != nil {
		return r
	}
	r.Found = i.data + " is root's and closed to others"
	if err := checkDir(i.data); err != nil {
		r.State, r.Found, r.Remedy = probe.No, errtext.Text(err), "name another with --data"
	}
	return r
}

// fewIDs is the part of the range below which doctor warns, and maxLedger bounds what it reads.
const (
	fewIDs    = 10
	maxLedger = 64 << 20
)

// checkIDs reads in the broker's ledger, as root, how many ids were never used.
func (i *instance) checkIDs(first, count uint32) (probe.Result, bool) {
	r := probe.Result{ID: "ids_left", Needed: "creating workspaces, each of which takes three ids for ever", State: probe.Yes}
	f, err := os.OpenFile(i.ledger(), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return r, false // no workspace was made yet, or the caller is not root
	}
	defer f.Close()
	next := uint64(first)
	for lines := bufio.NewScanner(io.LimitReader(f, maxLedger)); lines.Scan(); {
		var l struct {
			Next      uint64 `json:"next_uid"`
			Workspace struct {
				IDs struct {
					Agent uint64 `json:"agent"`
				} `json:"ids"`
			} `json:"workspace"`
		}
		if json.Unmarshal(lines.Bytes(), &l) == nil { // the broker may be writing the last one
			next = max(next, l.Next, l.Workspace.IDs.Agent+1)
		}
	}
	if of := brokerapi.WorkspaceIDs(count); of < count-1 && next <= uint64(first)+uint64(of) { // the rest is for carrel-egress
		count = of
	}
	left := uint64(first) + uint64(count) - min(next, uint64(first)+uint64(count))
	r.Found = fmt.Sprintf("%d of %d ids were never used, enough for %s", left, count, counted(left/3, "workspace"))
	if left < uint64(count)/fewIDs {
		r.State, r.Remedy = probe.Partly, "raise uid_count in "+i.settings()+", then end the broker and run carrel up --detach"
	}
	if left < 3 {
		r.State = probe.No
	}
	return r, true
}

// checkDaemon asks the daemon who it is. m is nil if it does not answer.
func (a *app) checkDaemon(ctx context.Context) (_ probe.Result, m *carrelv1.VersionResponse) {
	r := probe.Result{ID: "daemon", Needed: "using carrel", State: probe.Yes}
	t, err := a.target()
	if err != nil {
		r.State, r.Found, r.Remedy = probe.No, errtext.Text(err), "as the error says"
		return r, nil
	}
	client, err := a.clientIfUp()
	if t.host == "" && errors.Is(err, errNotUp) {
		r.Found = "your own at " + t.own.Socket + " starts when it is needed: " + t.why
		return r, nil
	}
	if err == nil {
		r.Found = "answers at " + client.Host() + ": " + t.why
		m, err = askOf(ctx, client, system.Version, &carrelv1.VersionRequest{})
	}
	if err != nil {
		r.State, r.Found, r.Remedy = probe.No, errtext.Text(err), startCommand(ctx)
		return r, nil
	}
	return sameVersion(r, m.GetVersion(), build.Version()), m
}

// sameVersion adds to the check of a daemon that it is of another version than this program.
func sameVersion(r probe.Result, daemon, own string) probe.Result {
	if daemon == own {
		return r
	}
	r.State = probe.Partly
	r.Found += fmt.Sprintf("; it is %s, and this program is %s", daemon, own)
	r.Remedy = "restart it: sudo systemctl restart carreld carrel-broker; without systemd, carrel down and carrel up --detach, " +
		"which stop all workspaces"
	return r
}

// startCommand is how the system's carrel is started on this host.
func startCommand(ctx context.Context) string {
	if booted() && exec.CommandContext(ctx, "systemctl", "cat", serviceTarget).Run() == nil {
		return "sudo systemctl enable --now " + serviceTarget
	}
	return "sudo carrel up --detach"
}

// verifyTimeout is how long doctor verifies the audit log.
const verifyTimeout = 5 * time.Second

// checkAudit reports to administrators up to which record the audit log is signed, and whether it holds. What
// there was no time to verify it says.
func (a *app) checkAudit(ctx context.Context) (probe.Result, bool) {
	r := probe.Result{ID: "audit_log", Needed: "a record that nobody can change unnoticed", State: probe.Yes}
	soon, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	m, err := ask(soon, a, records.Checkpoint, &carrelv1.CheckpointRequest{})
	if err != nil {
		return r, false // there is no daemon, or the caller is no administrator
	}
	r.Found = fmt.Sprintf("signed to record %d, countersigned to %d", m.GetSigned(), m.GetCountersigned())
	if m.GetAnchor() != "" {
		r.Found += fmt.Sprintf(", anchored to %d in %s", m.GetAnchored(), m.GetAnchor())
	} else {
		r.Found += "; no anchor"
	}
	short, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	v, err := ask(short, a, records.Verify, &carrelv1.VerifyRequest{})
	switch {
	case short.Err() != nil:
		r.Found += fmt.Sprintf("; not verified here, as that takes longer than %v: sudo carrel audit verify", verifyTimeout)
	case err != nil:
		r.Found += "; not verified: " + errtext.Text(err)
	case v.GetOk():
		r.Found += "; verified: " + counted(v.GetRecords(), "record")
	default:
		r.State, r.Found, r.Remedy = probe.No, v.GetDetail(), "sudo carrel audit verify"
		return r, true
	}
	switch {
	case m.GetError() != "":
		r.State, r.Found, r.Remedy = probe.No, m.GetError(), "sudo carrel audit verify"
	case m.GetAnchorError() != "":
		r.State, r.Found, r.Remedy = probe.Partly, m.GetAnchorError(), "see to the file that audit.anchor names"
	}
	return r, true
}
