package rules_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

func ask(t *testing.T, e *rules.Engine, command string, source rules.Origin) rules.Decision {
	t.Helper()
	return e.Decide(rules.Question{Command: command, Profile: rules.Host, Source: source, Home: "~", Dir: "/~/src"})
}

// A wrapper around a command that looks asks, with a low score, and its answer may be remembered.
func TestWrappedLookers(t *testing.T) {
	e := engine(t)
	for line := range strings.Lines(`
sudo uptime
sudo -n uptime -p
sudo -u postgres ps aux
sudo --user=www-data id
sudo -H whoami
sudo -- w
sudo ps -ef | grep nginx | head -5
sudo ls -la /root
sudo ls
sudo du -sh /var/lib
sudo df -h
sudo stat /etc/shadow
sudo free -m
sudo cat /var/log/auth.log
sudo tail -n 50 /var/log/nginx/error.log
sudo tail -f /var/log/syslog
sudo head -20 /var/log/dpkg.log
sudo wc -l /var/log/syslog
sudo grep -i failed /var/log/auth.log
sudo egrep -c sshd /var/log/auth.log
sudo fgrep x /var/log/auth.log
sudo ss -tlnp
sudo netstat -tulpn
sudo lsof -i :80
sudo lsblk -f
sudo blkid
sudo lsmod
sudo lspci -v
sudo lsusb -t
sudo findmnt /home
sudo dmesg -T
sudo dmesg -T | tail -20
sudo ip -br addr
sudo ip route show
sudo iptables -L -n -v
sudo ip6tables -S
sudo nft list ruleset
sudo ufw status verbose
sudo smartctl -a /dev/sda
sudo crontab -l
sudo crontab -u www-data -l
sudo sysctl -a
sudo systemctl --no-pager status nginx
sudo systemctl status nginx --no-pager
sudo systemctl status nginx | cat
sudo journalctl -u nginx -n 50 --no-pager
sudo journalctl --since=-1h -u ssh | grep -i fail
sudo last -n 5
sudo lastb
sudo who -b
sudo vmstat 1 5
sudo iostat -x 1 3
sudo uname -a
sudo pgrep -a sshd
sudo uptime 2>/dev/null
sudo uptime 2>&1 | head -1
ssh h uptime
ssh admin@web-1.example.org df -h
ssh -p 2222 -l admin h 'ps aux | grep nginx'
ssh -q h 'uptime; df -h'
ssh h git log -3
ssh h systemctl status nginx
ssh h docker ps
ssh h uptime && ssh g uptime
docker exec web ps aux
docker exec -it web ls /app
docker exec -w /app web git status
docker exec web cat /etc/nginx/nginx.conf
docker exec web sh -c 'ps | head -3'
podman exec web id
kubectl exec web-0 -- ps aux
kubectl exec -n prod deploy/api -c api -- cat /etc/os-release
kubectl -n prod exec -it web-0 -- ls /
kubectl exec web-0 -n prod -- env
`) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		for _, source := range []rules.Origin{rules.User, rules.LLM} {
			d := ask(t, e, line, source)
			if rule := strings.HasPrefix(line, "ssh "); d.NoRule == rule {
				t.Errorf("%s: a rule that allows it may be written: %t", line, rule)
			}
			if d.Level != rules.Confirm || d.RiskScore != rules.EasedRisk || d.NeverWhitelist {
				t.Errorf("%s: %s, risk %d, never %t by %v; want CONFIRM with risk %d, and that it may be remembered",
					line, d.Level, d.RiskScore, d.NeverWhitelist, d.MatchedRules, rules.EasedRisk)
			}
		}
	}
}

// What a line may hide behind a wrapper keeps the wrapper's whole score, and what was never remembered is not.
func TestWrappedAttacks(t *testing.T) {
	e := engine(t)
	usual := map[string]int{"sudo": 75, "ssh": 60, "docker": 65, "podman": 65, "kubectl": 80}
	for line := range strings.Lines(`
sudo rm notes
sudo touch x
sudo uptime; sudo rm notes
sudo sh -c uptime
sudo env uptime
sudo -s uptime
sudo -i
sudo -e notes
sudo -E uptime
sudo -A uptime
sudo -b uptime
sudo -S uptime
sudo -g disk cat /var/log/syslog
sudo -R /tmp/root ls
sudo -D /tmp uptime
sudo -r sysadm_r uptime
sudo --preserve-env=PATH uptime
sudo PATH=/tmp uptime
sudo LD_PRELOAD=/tmp/x.so uptime
SUDO_ASKPASS=/tmp/x sudo uptime
FOO=bar sudo uptime
export FOO=bar; sudo uptime
printf -v FOO bar; sudo uptime
read FOO; sudo uptime
hash -p /tmp/x sudo; sudo uptime
alias uptime=ls; sudo uptime
sudo() { rm x; }; sudo uptime
cd /tmp && sudo ls
f() { sudo uptime; }; f
trap 'sudo uptime' EXIT
while true; do sudo uptime; done
for h in a b; do ssh $h uptime; done
sudo uptime &
sudo $CMD
sudo ls $DIR
sudo ls *
sudo "$(cat x)"
sudo ls $(rm x)
sudo cat notes
sudo cat ./notes
sudo cat /tmp/notes
sudo cat ~/notes
sudo cat /home/bob/notes
sudo cat /etc/shadow
sudo cat /etc/wireguard/wg0.conf
sudo cat /var/log/../../etc/nginx/x
sudo cat /var/log/.x
sudo cat /var/log/syslog notes
sudo cat /dev/mem
sudo cat /proc/1/environ
sudo grep -r root /etc
sudo grep root /etc/nginx/x
sudo grep -f notes /var/log/syslog
sudo grep -rf notes /var/log/syslog
sudo find /etc -name x
sudo date -f notes
sudo dmesg -F notes
sudo dmesg -Fnotes
sudo dmesg -rFnotes
sudo dmesg -c
sudo dmesg -C
sudo ss -a -F notes
sudo ss -K dst 10.0.0.1
sudo ss -D x
sudo last -f notes
sudo findmnt -F notes
sudo blkid -c notes
sudo lsof -D b/tmp/x
sudo ip -b notes
sudo ip link set eth0 down
sudo ip netns exec x sh
sudo iptables -F
sudo iptables -L -Z
sudo iptables -LZ
sudo nft flush ruleset
sudo nft -f notes
sudo ufw disable
sudo smartctl -t long /dev/sda
sudo crontab -r
sudo crontab notes
sudo sysctl -w net.ipv4.ip_forward=1
sudo sysctl -p notes
sudo sysctl kernel.core_pattern=x
sudo systemctl status nginx
sudo systemctl restart nginx --no-pager
sudo systemctl --root=/tmp/x status nginx --no-pager
sudo journalctl -u nginx
sudo journalctl --no-pager -D notes
sudo journalctl --vacuum-size=1 --no-pager
sudo journalctl --file=notes --no-pager
sudo less /var/log/syslog
sudo more /var/log/syslog
sudo man ls
sudo top
sudo git status
sudo git log
sudo pip list
sudo npm ls
sudo docker ps
sudo ./ps
sudo /tmp/ps
sudo ps > x
sudo ps >> x
sudo uptime < notes
echo pw | sudo -S uptime
cat notes | sudo tail
sudo ssh h uptime
sudo docker exec web ps
sudo sudo uptime
sudo
ssh h
ssh h rm notes
ssh h 'uptime; rm notes'
ssh h 'uptime > x'
ssh h uptime; rm notes
ssh h '$(cat x)'
ssh h "echo $SECRET"
ssh h "echo $(cat notes)"
ssh h echo *
ssh $H uptime
ssh "$(cat host)" uptime
cat notes | ssh h cat
ssh h cat < notes
ssh h cat <<< notes
ssh h cat 3< notes
ssh -t h uptime
ssh -A h uptime
ssh -X h uptime
ssh -f h uptime
ssh -L 1:h:2 h uptime
ssh -R 1:h:2 h uptime
ssh -D 1080 h uptime
ssh -W h:22 h uptime
ssh -J j h uptime
ssh -F notes h uptime
ssh -E notes h uptime
ssh -S notes h uptime
ssh -I /tmp/x.so h uptime
ssh -o ProxyCommand=uptime h uptime
ssh -oProxyCommand=uptime h uptime
ssh -o LocalCommand=uptime h uptime
ssh -w 0:0 h uptime
ssh h -o ProxyCommand=uptime uptime
ssh -- -oProxyCommand=uptime uptime
ssh h sudo uptime
ssh h ssh g uptime
ssh h 'PATH=/tmp:$PATH uptime'
ssh h python3 x.py
docker exec web rm x
docker exec web
docker exec -it web sh
docker exec -it web less x
docker exec -it web git log
docker exec --privileged web ps
docker exec -u 0 web ps
docker exec --user root web id
docker exec -e LD_PRELOAD=x web ps
docker exec --env-file x web ps
docker exec -d web ps
docker -H tcp://h.example:2375 exec web ps
docker --config x exec web ps
docker -c prod exec web ps
docker exec $C ps
docker exec web sh -c 'ps; rm x'
docker exec web sh -c "ps $X"
cat notes | docker exec -i web cat
docker exec -i web cat < notes
docker exec web cat /run/secrets/db
docker run web ps
docker compose exec web ps
DOCKER_HOST=tcp://h.example:2375 docker exec web ps
docker exec web printenv DB_PASSWORD
kubectl exec web-0 -- rm x
kubectl exec web-0 ps
kubectl exec -it web-0 -- sh
kubectl exec -it web-0 -- less x
kubectl --kubeconfig notes exec web-0 -- ps
kubectl --kubeconfig=notes exec web-0 -- ps
KUBECONFIG=notes kubectl exec web-0 -- ps
kubectl --as=admin exec web-0 -- ps
kubectl --server=https://h.example exec web-0 -- ps
kubectl exec -f notes -- ps
kubectl exec web-0 -- sh -c 'ps; rm x'
kubectl exec web-0 $X -- ps
kubectl debug web-0 -- ps
kubectl exec web-0 -- cat /var/run/secrets/kubernetes.io/serviceaccount/token
`) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		for _, source := range []rules.Origin{rules.User, rules.LLM} {
			d := ask(t, e, line, source)
			least := 0
			for name, risk := range usual {
				if strings.HasPrefix(line, name+" ") {
					least = risk
				}
			}
			least = max(least, rules.EasedRisk+1)
			if d.Level == rules.Safe || d.RiskScore < least {
				t.Errorf("%s: %s, risk %d by %v; want at least CONFIRM and %d", line, d.Level, d.RiskScore, d.MatchedRules, least)
			}
			if strings.Contains(line, "ssh") && !strings.Contains(line, "sudo") {
				continue // an answer to it could be remembered before
			}
			if !d.NeverWhitelist && d.Level == rules.Confirm {
				t.Errorf("%s: an answer to it may be remembered; by %v", line, d.MatchedRules)
			}
		}
	}
}

// Words that no shell reads are judged alike; variables that a caller adds count.
func TestWrappedWords(t *testing.T) {
	e := engine(t)
	q := rules.Question{Argv: []string{"sudo", "ls", "/root"}, Profile: rules.Remote, Source: rules.User}
	if d := e.Decide(q); d.RiskScore != rules.EasedRisk || d.NeverWhitelist {
		t.Errorf("risk %d, never %t", d.RiskScore, d.NeverWhitelist)
	}
	q.Env = []string{"FOO=bar"}
	if d := e.Decide(q); d.RiskScore != 75 || !d.NeverWhitelist {
		t.Errorf("with a variable: risk %d, never %t", d.RiskScore, d.NeverWhitelist)
	}
	w := rules.Question{Command: "kubectl exec web-0 -- ps", Profile: rules.Workspace, Verified: true, Source: rules.LLM}
	if d := e.Decide(w); d.RiskScore != 80 || !d.NeverWhitelist {
		t.Errorf("in a workspace: risk %d, never %t; it is not about hosts", d.RiskScore, d.NeverWhitelist)
	}
}

// What a person wrote about a wrapper, or about the command behind it, holds.
func TestWrappedOwnRules(t *testing.T) {
	for name, match := range map[string]string{
		"the wrapper": "{command: [sudo]}", "the command": "{command: [uptime]}",
		"the capability": "{capability_any: [privilege.escalate], profile: [host]}",
	} {
		e, err := rules.New(rules.Config{Rules: &rules.Source{Name: "own.yaml", Data: []byte(`
version: 1
rules:
  - id: own
    legacy_rule: OWN
    level: CONFIRM
    risk_score: 90
    capabilities: []
    reason: says so
    never_whitelist: true
    match: ` + match + "\n")}})
		if err != nil {
			t.Fatal(err)
		}
		if d := ask(t, e, "sudo uptime", rules.User); d.RiskScore != 90 || !d.NeverWhitelist {
			t.Errorf("a rule about %s: risk %d, never %t", name, d.RiskScore, d.NeverWhitelist)
		} else if least := d.Segments[0].RiskScore; least < 75 {
			t.Errorf("a rule about %s: risk %d of sudo", name, least)
		}
	}
}

// A command that an own rule calls SAFE may still change something: by itself it runs, as root it is not taken for a look.
func TestWrappedOwnSafe(t *testing.T) {
	e, err := rules.New(rules.Config{Rules: &rules.Source{Name: "own.yaml", Data: []byte(`
version: 1
rules:
  - id: host.filesystem.write
    legacy_rule: OWN
    level: SAFE
    risk_score: 0
    capabilities: []
    reason: says so
    match: {capability_any: [filesystem.write], profile: [host]}
`)}})
	if err != nil {
		t.Fatal(err)
	}
	if d := ask(t, e, "touch x", rules.User); d.Level != rules.Safe {
		t.Errorf("touch x: %s by %v", d.Level, d.MatchedRules)
	}
	for command, risk := range map[string]int{"ssh h touch x": 60, "docker exec web touch x": 65} {
		if d := ask(t, e, command, rules.User); d.RiskScore != risk {
			t.Errorf("%s: risk %d, never %t", command, d.RiskScore, d.NeverWhitelist)
		}
	}
}
