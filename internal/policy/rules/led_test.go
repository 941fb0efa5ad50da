package rules_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// An option or a word that names a program, a library, a server or a file that is written is no look, whatever the program looks at.
func TestLedLookersDoMore(t *testing.T) {
	e := engine(t)
	for line := range strings.Lines(`
xdg-user-dir '}; touch /tmp/x; {'
busctl --address=unixexec:path=/bin/sh,argv1=-c,argv2=id list
busctl --address unixexec:path=/bin/sh list
DBUS_SYSTEM_BUS_ADDRESS=unixexec:path=/bin/sh busctl list
ar --plugin ./x.so t a.a
ar t --plugin ./x.so a.a
nm --plugin ./x.so a
bat --pager 'sh -c id' f
bat --pager=./x f
delta --pager 'sh -c id' f
gpg-connect-agent 'RUN /bin/sh' /bye
gpg-connect-agent '/datafile /tmp/x' /bye
gpgconf --change-options gpg-agent
gpgconf --launch gpg-agent
rsync -n --only-write-batch=/tmp/x a b
rsync -n --only-write-batch=x a b
kubectl -s http://h.example get pods
kubectl get pods -shttp://h.example
helm template x --repo http://h.example
whois -h h.example data
finger user@h.example
systemd-analyze set-log-level debug
systemd-analyze log-level debug
journalctl --flush
journalctl --sync
pip list --python ./x
ansible-inventory --list --inventory ./x
git log --unheard-of=./x
`) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		for _, p := range []rules.Profile{rules.Host, rules.Remote} {
			if d := e.Decide(rules.Question{Command: line, Profile: p, Source: rules.User}); d.Level == rules.Safe {
				t.Errorf("%s on %s: %v", line, p, d.Capabilities)
			}
		}
	}
	for line := range strings.Lines(`
xdg-user-dir DOWNLOAD
busctl list
ar t a.a
bat --pager=less f
bat --paging never f
gpgconf --list-options gpg
rsync -n a b
kubectl get pods
helm template x
whois example.com
finger root
systemd-analyze blame
journalctl -u x
git log --since=yesterday
`) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if d := ask(t, e, line, rules.User); d.Level != rules.Safe {
			t.Errorf("%s: %s by %v", line, d.Level, d.Reasons)
		}
	}
}
