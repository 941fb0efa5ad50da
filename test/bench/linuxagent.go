package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

const (
	linuxAgentPackage = "linuxagent==4.1.0"
	// What its terminal shows where it waits, and before it asks.
	linuxAgentPrompt, linuxAgentQuestion = "❯", "Allow this operation?"
)

// linuxAgent is LinuxAgent of PyPI, with the same model.
type linuxAgent struct {
	*asking
	argv []string
}

// linuxAgent installs LinuxAgent for this run and tries it.
func (a *asking) linuxAgent() (*linuxAgent, error) {
	dir := filepath.Join(a.b.dir, "linuxagent")
	a.b.say("installing %s", linuxAgentPackage)
	for _, argv := range [][]string{
		{"/usr/bin/python3", "-m", "venv", dir},
		{filepath.Join(dir, "bin/pip"), "install", "--quiet", "--disable-pip-version-check", linuxAgentPackage},
	} {
		if out, err := exec.CommandContext(a.b.ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("cannot install %s: %w: %s", linuxAgentPackage, err, lastLine(out))
		}
	}
	conf := filepath.Join(a.p.home, "linuxagent.yaml")
	if err := errors.Join(
		os.WriteFile(conf, fmt.Appendf(nil, "api: {provider: openai_compatible, "+
			"base_url: \"http://127.0.0.1:%s/v1\", model: %s, api_key: none}\n"+
			"telemetry: {enabled: false}\nmonitoring: {enabled: false}\n", a.model.port, modelName), 0o600),
		os.Chown(conf, int(a.p.cred.Uid), int(a.p.cred.Gid)),
	); err != nil {
		return nil, err
	}
	program := filepath.Join(dir, "bin/linuxagent")
	if out, err := a.p.command("", program, "--config", conf, "check").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, lastLine(out))
	}
	a.b.Versions["linuxagent"] = linuxAgentPackage
	return &linuxAgent{a, []string{program, "--config", conf, "chat"}}, nil
}

func (l *linuxAgent) prompt() measure.Contestant {
	return measure.Contestant{Name: report.LinuxAgent, Op: func() (time.Duration, error) {
		began := time.Now()
		x, err := l.program(l.argv...)
		if err != nil {
			return 0, err
		}
		defer x.End()
		err = x.ExpectAfter("", linuxAgentPrompt)
		return time.Since(began), err
	}}
}

// turn is one in a chat of its own, whose start is not counted.
func (l *linuxAgent) turn(mark string, s *turnCost) measure.Contestant {
	plan := fmt.Sprintf(`{"goal":"see","commands":[{"command":"touch %s","purpose":"see","read_only":false,"target_hosts":[]}],`+
		`"risk_summary":"none","preflight_checks":[],"verification_commands":[],"rollback_commands":[],"requires_root":false,`+
		`"expected_side_effects":[]}`, mark)
	return measure.Contestant{Name: report.LinuxAgent, Op: func() (time.Duration, error) {
		l.model.reset(plan)
		x, err := l.program(l.argv...)
		if err != nil {
			return 0, err
		}
		defer x.End()
		if err := errors.Join(x.ExpectAfter("", linuxAgentPrompt), x.Type("touch the file\r"), x.ExpectAfter("", linuxAgentQuestion),
			x.Type("1\r")); err != nil {
			return 0, err
		}
		at, err := appears(mark)
		if err != nil {
			return 0, fmt.Errorf("%w: %s", err, x.Screen())
		}
		_, _, planned := l.model.used()
		err = x.ExpectAfter("", saidAtLast)
		s.add(l.model)
		return at.Sub(planned), err
	}}
}
