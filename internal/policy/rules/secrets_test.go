package rules_test

import (
	"slices"
	"testing"
)

// TestSecretsByName holds which file names mean secrets, and similar names that do not.
func TestSecretsByName(t *testing.T) {
	e := engine(t)
	for _, f := range []string{
		"/etc/dovecot/users", "/etc/gitlab-runner/config.toml", "~/.offlineimaprc", "/etc/rsyncd.secrets", "ca-key.pem", "client_secret",
		"admin.password", "wg0.conf", "kubeconfig-prod", "~/.config/gcalcli/oauth",
		"/opt/nexus/sonatype-work/nexus3/admin.password", "creds.json",
	} {
		if d := e.Decide(host("cat " + f)); !slices.Contains(d.Capabilities, "secret.read") {
			t.Errorf("%s is no secret: %v", f, d.Capabilities)
		}
	}
	for _, f := range []string{
		"docs/tokens.md", "secret_test.go", "design-tokens.css", "/etc/passwd", "/etc/pam.d/common-password", "lib/password_reset.rb",
		"chapter*.md", "ca-bundle.pem", "PasswordInput.tsx", "/etc/keepalived/keepalived.conf", "appsettings.json",
	} {
		if d := e.Decide(host("cat " + f)); slices.Contains(d.Capabilities, "secret.read") {
			t.Errorf("%s is a secret: %v", f, d.Capabilities)
		}
	}
}

// A glob asks where it may stand for a secret, and not where its fixed end shares nothing with a secret's name, or where
// ** stands for some directory only.
func TestGlobsOfSecrets(t *testing.T) {
	e := engine(t)
	for _, f := range []string{
		"/etc/*", "/etc/sha*", "/etc/*dow", "/etc/*w", "/etc/postfix/*d", "/etc/postfix/*wd",
		"/etc/*ow-", "/etc/*ow.bak", "/etc/*shadow*", "/etc/?hadow", "/var/backups/*ow.bak", "~/.ssh/*",
		"~/.ssh/id_*", "/home/*/.ssh/*", "**/id_rsa", "**/.ssh/*", "**/*.pem", "**/.env", "**/*_rsa", "**/credentials.json", "/etc/**",
		"**/*", "**",
	} {
		if d := e.Decide(host("cat " + f)); !slices.Contains(d.Capabilities, "secret.read") {
			t.Errorf("%s stands for no secret: %v", f, d.Capabilities)
		}
	}
	for _, f := range []string{
		"/etc/*release", "/etc/*-release", "**/*.go", "**/*.md", "src/**/*.go", "**/Makefile", "*/*.go",
		"/srv/**/*.go",
	} {
		if d := e.Decide(host("cat " + f)); slices.Contains(d.Capabilities, "secret.read") {
			t.Errorf("%s stands for a secret: %v", f, d.Reasons)
		}
	}
}

// What prints or packs all files below a directory that holds secrets asks; what looks for something in it, sums it up or
// takes a part of it does not.
func TestWholeTrees(t *testing.T) {
	e := engine(t)
	for _, line := range []string{
		"tar cf - ~", "tar -C / -cf - etc", "tar cf - /etc", "tar cf - $HOME", "grep -rh '' /etc", "grep -r . /root", "grep -rv zzz ~",
		"grep -r -e '' /home", "find ~ -exec cat {} +", "find /etc -type f -exec cat {} ;", "find ~ -type f -print0 | xargs -0 cat",
		"diff -r ~ /tmp", "cp -a ~ /mnt/x", "zip -r x.zip ~",
	} {
		if d := e.Decide(host(line)); !slices.Contains(d.Capabilities, "secret.read") {
			t.Errorf("%s reads no secret: %v", line, d.Capabilities)
		}
	}
	for _, line := range []string{
		"grep -rn listen /etc", "grep -r . src", "find . -exec cat {} +", "find ~ -name '*.go' -exec cat {} +",
		"find ~ -name '*.go' | xargs cat", "find ~ -type f | xargs wc -l", "tar cf - .", "tar cf - ~/project", "diff -r a b", "ls -R ~",
		"du -sh ~", "rg TODO ~", "find /etc -type f -exec sha256sum {} +",
	} {
		if d := e.Decide(host(line)); slices.Contains(d.Capabilities, "secret.read") {
			t.Errorf("%s reads a secret: %v", line, d.Reasons)
		}
	}
}
