package rules

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// remotePath reports whether scp or rsync takes a path for one on another machine.
func remotePath(t string) bool {
	if strings.Contains(t, "://") {
		return true
	}
	i := strings.IndexByte(t, ':')
	return i > 0 && !strings.ContainsAny(t[:i], "/ ")
}

// out judges a host that receives data. In a workspace, loopback is the workspace's own.
func (j *judge) out(s *segment, w shell.Word) {
	if strings.HasPrefix(w.Text, "unix:") || strings.HasPrefix(w.Text, "/") {
		return
	}
	if !w.Dynamic && (loopback.MatchString(w.Text) || strings.HasPrefix(w.Text, ":")) {
		if j.inside {
			s.add(NetworkQuery, w.Text)
			return
		}
	}
	s.add(NetworkOut, w.Text)
	if messengers.MatchString(w.Text) {
		s.add(MessageSend, w.Text)
	}
}

var messengers = lazy(`hooks\.slack\.com|slack\.com/api/chat|discord(?:app)?\.com/api/webhooks|api\.telegram\.org|` +
	`webhook\.office\.com|api\.twilio\.com|api\.sendgrid\.com|api\.pushover\.net|ntfy\.sh`)

var secretName = lazy(`(?i)\$\{?!?[A-Z0-9_]*(?:TOKEN|SECRET|PASSW|PASSPHRASE|API_?KEY|PRIVATE_?KEY|ACCESS_KEY|CREDENTIAL)`)

// fetch judges a URL that is read.
func (j *judge) fetch(s *segment, w shell.Word) {
	if f, ok := strings.CutPrefix(w.Text, "file://"); ok {
		j.pathEffect(s, part(w, f), accessRead)
		return
	}
	if metadata.MatchString(w.Text) {
		s.add(SecretRead, w.Text+" (the provider's metadata)")
		s.add(NetworkIn, w.Text)
		return
	}
	if loopback.MatchString(w.Text) && !w.Dynamic {
		s.add(NetworkQuery, w.Text)
		return
	}
	s.add(NetworkIn, w.Text)
	if w.Dynamic && strings.ContainsAny(w.Text, "(`") || strings.Contains(w.Text, "@") && strings.Contains(w.Text, "?") {
		s.add(NetworkOut, w.Text)
	}
}

// volume judges a volume of a container: host:place:options, or type=bind,source=….
func (j *judge) volume(s *segment, w shell.Word) {
	host, _, _ := strings.Cut(w.Text, ":")
	if strings.Contains(w.Text, ",") && strings.Contains(w.Text, "=") {
		host = ""
		for kv := range strings.SplitSeq(w.Text, ",") {
			if k, v, _ := strings.Cut(kv, "="); k == "source" || k == "src" {
				host = v
			}
		}
	}
	if !strings.HasPrefix(host, "/") && !strings.HasPrefix(host, "~") && !strings.HasPrefix(host, "$") {
		return
	}
	p, glob := canonical(part(w, host), j.q.Home, j.dir)
	if p == "/" || p == "/~" || p == "/home" || systemTrees[p] || strings.HasSuffix(p, "docker.sock") ||
		strings.HasSuffix(p, "containerd.sock") {
		s.add(PrivilegeEscalate, "mounts "+host)
	}
	if set, class := j.pathCaps(p, glob, accessRead); set != 0 {
		s.addSet(set, host+" ("+class+")")
	}
}

// sshOption judges -o Name=value.
func (j *judge) sshOption(s *segment, w shell.Word) {
	name, value, ok := strings.Cut(w.Text, "=")
	if !ok {
		name, value, _ = strings.Cut(w.Text, " ")
	}
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "proxycommand", "localcommand", "knownhostscommand":
		if value != "none" {
			j.shellText(s, part(w, value))
			s.add(CodeExecute, w.Text)
		}
	case "proxyusefdpass", "permitlocalcommand":
		s.add(CodeExecute, w.Text)
	case "remoteforward":
		s.add(NetworkListen, w.Text)
	case "stricthostkeychecking":
		if v := strings.ToLower(value); v == "no" || v == "off" {
			s.add(SecurityDisable, w.Text)
		}
	}
}

// socat judges an address of socat.
func (j *judge) socat(s *segment, w shell.Word) {
	kind, rest, _ := strings.Cut(w.Text, ":")
	switch k := strings.ToUpper(kind); {
	case strings.Contains(k, "LISTEN") || strings.HasSuffix(k, "-RECV") || strings.HasSuffix(k, "-RECVFROM"):
		s.add(NetworkListen, w.Text)
	case k == "EXEC" || k == "SYSTEM" || k == "SHELL":
		s.add(RemoteCodeExecute, w.Text)
		cmd, _, _ := strings.Cut(rest, ",")
		j.shellText(s, part(w, cmd))
	case k == "OPEN" || k == "FILE" || k == "CREATE" || k == "GOPEN":
		f, _, _ := strings.Cut(rest, ",")
		j.pathEffect(s, part(w, f), accessRead)
		j.write(s, part(w, f))
	case strings.HasPrefix(k, "UNIX"):
		f, _, _ := strings.Cut(rest, ",")
		j.pathEffect(s, part(w, f), accessWrite)
	}
}

// gitURL judges a repository's address: ext:: runs a command.
func (j *judge) gitURL(s *segment, w shell.Word) {
	if cmd, ok := strings.CutPrefix(w.Text, "ext::"); ok {
		s.add(CodeExecute, w.Text)
		j.shellText(s, part(w, cmd))
	}
	if f, ok := strings.CutPrefix(w.Text, "file://"); ok {
		j.pathEffect(s, part(w, f), accessRead)
	}
}

// s3 judges a place that is copied to or from a provider.
func (j *judge) s3(s *segment, w shell.Word) {
	if strings.HasPrefix(w.Text, "s3://") {
		s.add(NetworkOut, w.Text)
		return
	}
	if w.Text != "-" {
		j.pathEffect(s, w, accessRead)
	}
}

var (
	// In what stands before an @ there is no ?, # or \: http://h.example#@localhost/ is a page of h.example.
	loopback = lazy(`^unix:|^/|^(?:https?|ftp|tcp|ws|wss|redis|postgres(?:ql)?|mysql)?(?:://)?(?:[^@/\s?#\\]*@)?(?:localhost|` +
		`127(?:\.[0-9]+){3}|\[::1\]|::1|0\.0\.0\.0)(?::[0-9]+)?(?:[/?#].*)?$`)
	metadata = lazy(`169\.254\.169\.254|metadata\.google\.internal|100\.100\.100\.200|fd00:ec2::254|169\.254\.170\.2`)
)
