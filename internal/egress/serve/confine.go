package serve

import (
	"os"
	"path/filepath"

	"github.com/landlock-lsm/go-landlock/landlock"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/drop"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/seccomp"
)

// confine gives up every right that serving does not need: capabilities, new privileges, all files but those that name
// servers are read from, and all system calls but those of seccomp.Network.
func confine() error {
	if err := drop.Dumps(); err != nil {
		return err
	}
	if err := drop.Capabilities(); err != nil {
		return err
	}
	if err := drop.NewPrivileges(); err != nil {
		return err
	}
	abi, err := drop.LandlockABI()
	if err != nil {
		return err
	}
	if err := drop.Files(abi, readable()...); err != nil {
		return err
	}
	filter, err := seccomp.Network(os.Getpid())
	if err != nil {
		return err
	}
	return seccomp.Load(filter)
}

// readable are the files that Go's resolver reads, and again when they change: so the directories that hold them,
// because most programs replace a file instead of writing it. The certificate authorities are read with the first secret.
func readable() []landlock.Rule {
	rules := []landlock.Rule{landlock.RODirs("/etc"), landlock.RODirs(authorities...).IgnoreIfMissing()}
	if file := os.Getenv("SSL_CERT_FILE"); file != "" {
		rules = append(rules, landlock.ROFiles(file).IgnoreIfMissing())
	}
	for _, dir := range filepath.SplitList(os.Getenv("SSL_CERT_DIR")) {
		rules = append(rules, landlock.RODirs(dir).IgnoreIfMissing())
	}
	if real, err := filepath.EvalSymlinks("/etc/resolv.conf"); err == nil && filepath.Dir(real) != "/etc" {
		rules = append(rules, landlock.RODirs(filepath.Dir(real)))
	}
	return rules
}
