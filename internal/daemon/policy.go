package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/state/config"
)

// maxPolicy bounds the file of rules in bytes.
const maxPolicy = 16 << 20

// loadPolicy reads and compiles the rules, at the start and at each reload.
func loadPolicy(cfg *config.Config, log *slog.Logger) (*rules.Engine, error) {
	conf := rules.Config{NoBuiltin: !cfg.PolicyBuiltin}
	if cfg.PolicyPath == "" {
		if conf.NoBuiltin {
			return nil, fmt.Errorf("there are no rules: policy.include_builtin is false and policy.path is empty; set one of them: %w",
				errdefs.ErrInvalidArgument)
		}
		return rules.New(conf)
	}
	// A command in a workspace must not change how it is judged, whoever owns the file.
	real, err := filepath.EvalSymlinks(cfg.PolicyPath)
	if err != nil {
		return nil, fmt.Errorf("cannot open the policy: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	data, err := filepath.EvalSymlinks(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("cannot tell whether the policy lies in a workspace: %w", err)
	}
	if strings.HasPrefix(real, data+"/") {
		return nil, fmt.Errorf(
			"cannot use %s as policy: it lies below the data directory, with the files of workspaces; put it in /etc/carrel: %w", cfg.PolicyPath,
			errdefs.ErrInvalidArgument,
		)
	}
	b, err := config.ReadTrusted(cfg.PolicyPath, "policy", maxPolicy)
	if err != nil {
		return nil, err
	}
	conf.Rules = &rules.Source{Name: cfg.PolicyPath, Data: b}
	e, err := rules.New(conf)
	if err != nil {
		return nil, err
	}
	for _, o := range e.Overridden() {
		log.Warn("a rule of the policy has no effect", "rule", o.Rule, "why", o.String())
	}
	return e, nil
}

// hangups catches SIGHUP from now on. One that arrives while the daemon starts does not end it,
// but is answered when it serves.
func hangups() (hups chan os.Signal, stop func()) {
	hups = make(chan os.Signal, 1)
	signal.Notify(hups, unix.SIGHUP)
	return hups, func() { signal.Stop(hups) }
}

// onHangup calls f for each SIGHUP, one after the other, until stop is called.
func onHangup(hups chan os.Signal, f func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range hups {
			f()
		}
	}()
	return func() {
		signal.Stop(hups)
		close(hups)
		<-done
	}
}
