// Command report prints how well the policy judges the labelled corpora: what people
// would have judged against what it says, the part that was read while the rules were
// written and the part that was not, apart.
//
// It must not print a line of the part that nobody reads.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// line is one labelled command.
type line struct {
	ID         string   `json:"id"`
	Command    string   `json:"command"`
	Expect     string   `json:"expect"`
	Capability string   `json:"capability"`
	Also       []string `json:"also"`
	Host       string   `json:"host"`
	Workspace  string   `json:"workspace"`
}

// measure is one figure: of which corpus, judged by which profile, what is right, and how
// much of it there has to be.
type measure struct {
	corpus, name string
	profile      rules.Profile
	target       float64
	counts       func(l *line) bool
	right        func(l *line, d *rules.Decision) bool
}

func always(*line) bool { return true }

func asks(_ *line, d *rules.Decision) bool { return d.Level > rules.Safe }

func safe(_ *line, d *rules.Decision) bool { return d.Level == rules.Safe }

func named(l *line, d *rules.Decision) bool {
	return slices.ContainsFunc(append(l.Also, l.Capability), func(c string) bool { return slices.Contains(d.Capabilities, c) })
}

func level(want string, d *rules.Decision) bool {
	if want == "SAFE" {
		return d.Level == rules.Safe
	}
	return d.Level > rules.Safe
}

var measures = []measure{
	{"dangerous", "not SAFE", rules.Host, 1, always, asks},
	{"dangerous", "capability named", rules.Host, 0.97, always, named},
	{"readonly", "SAFE", rules.Host, 0.95, always, safe},
	{"obfuscated", "not SAFE", rules.Host, 1, always, asks},
	{"development", "SAFE", rules.Workspace, 0.98, always, safe},
	{
		"workspace-reach", "not SAFE", rules.Workspace, 1, func(l *line) bool { return l.Expect != "SAFE" }, asks,
	},
	{
		"workspace-reach", "SAFE, held", rules.Workspace, 0.95, func(l *line) bool { return l.Expect == "SAFE" }, safe,
	},
	{
		"scripts", "as labelled", rules.Host, 0.95, func(l *line) bool { return l.Host != "" },
		func(l *line, d *rules.Decision) bool { return level(l.Host, d) },
	},
	{
		"scripts", "as labelled", rules.Workspace, 0.95, func(l *line) bool { return l.Workspace != "" },
		func(l *line, d *rules.Decision) bool { return level(l.Workspace, d) },
	},
}

func main() {
	dir := flag.String("corpora", "internal/policy/rules/testdata/corpora", "where the corpora are")
	wrong := flag.Bool("wrong", false, "print the lines that are judged wrongly, of the part that may be read")
	only := flag.String("only", "", "print those of this corpus alone")
	speed := flag.Bool("speed", false, "measure what a decision costs instead, by the readonly and development lines")
	check := flag.Bool("check", false, "fail if a target is not reached")
	flag.Parse()
	if *speed {
		if err := measureSpeed(*dir); err != nil {
			fmt.Fprintln(os.Stderr, "report:", err)
			os.Exit(1)
		}
		return
	}
	ok, err := run(*dir, *only, *wrong)
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
	if *check && !ok {
		os.Exit(1)
	}
}

func run(dir, only string, wrong bool) (bool, error) {
	e, err := rules.New(rules.Config{})
	if err != nil {
		return false, err
	}
	fmt.Printf("policy %s, %d rules\n\n", e.Digest()[:19], e.Rules())
	fmt.Printf("%-16s %-17s %-10s %7s  %-21s %-21s\n", "corpus", "measure", "profile", "target", "tuning", "held out")
	ok := true
	for _, m := range measures {
		var cells [2]string
		for i, suffix := range []string{".jsonl", ".heldout.jsonl"} {
			lines, err := read(filepath.Join(dir, m.corpus+suffix))
			if err != nil {
				return false, err
			}
			n, right := 0, 0
			for k := range lines {
				l := &lines[k]
				if !m.counts(l) {
					continue
				}
				n++
				d := e.Decide(rules.Question{Command: l.Command, Profile: m.profile, Verified: true, Source: rules.User})
				if m.right(l, &d) {
					right++
				} else if wrong && i == 0 && (only == "" || only == m.corpus) {
					fmt.Printf("  %s/%s %s %s %v: %s\n", m.corpus, m.name, l.Capability, d.Level, d.Capabilities,
						strings.ReplaceAll(l.Command, "\n", "⏎"))
				}
			}
			share := float64(right) / float64(max(n, 1))
			ok = ok && share >= m.target
			cells[i] = fmt.Sprintf("%5d/%-5d %6.2f %%", right, n, 100*share)
		}
		fmt.Printf("%-16s %-17s %-10s %5.0f %%  %-21s %-21s\n", m.corpus, m.name, m.profile, 100*m.target, cells[0], cells[1])
	}
	share, n, err := asked(e, dir)
	fmt.Printf("\nasked in a verified workspace: %.2f %% of %d harmless lines of development, scripts and workspace-reach (target %.0f %%)\n",
		100*share, n, 100*maxAsked)
	return ok && share <= maxAsked, err
}

// maxAsked is the largest share of what agents do in a workspace that a person may be asked about.
const maxAsked = 0.02

// asked is that share, of both parts of the corpora whose lines stay inside, written by a model.
func asked(e *rules.Engine, dir string) (share float64, n int, err error) {
	asks := 0
	for _, corpus := range []string{"development", "scripts", "workspace-reach"} {
		for _, suffix := range []string{".jsonl", ".heldout.jsonl"} {
			lines, err := read(filepath.Join(dir, corpus+suffix))
			if err != nil {
				return 0, 0, err
			}
			for i := range lines {
				if lines[i].Workspace != "SAFE" && lines[i].Expect != "SAFE" {
					continue
				}
				n++
				q := rules.Question{Command: lines[i].Command, Profile: rules.Workspace, Verified: true, Source: rules.LLM}
				if e.Decide(q).Level != rules.Safe {
					asks++
				}
			}
		}
	}
	return float64(asks) / float64(max(n, 1)), n, nil
}

// measureSpeed judges each line many times and prints the time of a decision, the slowest
// of a line's runs left to the percentiles of all.
func measureSpeed(dir string) error {
	e, err := rules.New(rules.Config{})
	if err != nil {
		return err
	}
	var commands []string
	for _, name := range []string{"readonly.jsonl", "development.jsonl"} {
		lines, err := read(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		for _, l := range lines {
			commands = append(commands, l.Command)
		}
	}
	const rounds = 20
	times := make([]time.Duration, 0, rounds*len(commands))
	begin := time.Now()
	for range rounds {
		for _, c := range commands {
			start := time.Now()
			e.Decide(rules.Question{Command: c, Profile: rules.Host, Source: rules.User})
			times = append(times, time.Since(start))
		}
	}
	all := time.Since(begin)
	slices.Sort(times)
	fmt.Printf("%d lines, %d times: p50 %v, p99 %v, %.0f lines/s\n", len(commands), rounds, times[len(times)/2], times[len(times)*99/100],
		float64(len(times))/all.Seconds())
	return nil
}

func read(name string) ([]line, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []line
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var l line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, len(out)+1, err)
		}
		out = append(out, l)
	}
	return out, s.Err()
}
