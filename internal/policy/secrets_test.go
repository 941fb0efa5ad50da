package policy_test

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
