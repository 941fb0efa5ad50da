package fleet

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settings are what the ssh configuration says about one host. Zero values are not set.
type settings struct {
	host           string // HostName, or what was asked for
	port           int
	user           string
	identityFiles  []string
	identitiesOnly bool
	jump           []string // as ProxyJump has them, nil for none
	knownHosts     []string // nil: not set; empty: none
	systemHosts    []string
	alias          string // HostKeyAlias
	agent          string // IdentityAgent
	timeout        time.Duration
	alive          time.Duration
	aliveSet       bool
	aliveMax       int
	network        string            // tcp, tcp4 or tcp6
	algorithms     map[string]string // by the name of the setting, as it has them
}

// caller is the user on this side.
type caller struct {
	user string
	home string
}

// Settings that are refused unless their value is one of ok.
var refused = map[string]struct {
	ok  []string
	why string
}{
	"proxycommand":                     {[]string{"none"}, "it runs a program on this machine"},
	"localcommand":                     {nil, "it runs a program on this machine"},
	"permitlocalcommand":               {[]string{"no"}, "it lets a program run on this machine"},
	"knownhostscommand":                {[]string{"none"}, "it runs a program on this machine"},
	"pkcs11provider":                   {[]string{"none"}, "it loads a library into this process; add the key to the agent"},
	"smartcarddevice":                  {nil, "it loads a library into this process; add the key to the agent"},
	"securitykeyprovider":              {[]string{"internal"}, "it loads a library into this process; add the key to the agent"},
	"stricthostkeychecking":            {[]string{"yes", "ask", "accept-new"}, "an unknown host key is never accepted"},
	"nohostauthenticationforlocalhost": {[]string{"no"}, "an unknown host key is never accepted"},
	"verifyhostkeydns":                 {[]string{"no", "ask"}, "host keys are looked up in known_hosts only"},
	"revokedhostkeys":                  {[]string{"none"}, "list the keys with @revoked in known_hosts"},
	"canonicalizehostname":             {[]string{"no"}, "names are taken as they are"},
	"certificatefile":                  {[]string{"none"}, "certificates of users come from the agent"},
	"pubkeyauthentication":             {[]string{"yes", "unbound", "host-bound"}, "keys are the only way to log in"},
	"remotecommand":                    {[]string{"none"}, "the command is that of the step"},
	"bindaddress":                      {nil, "the system chooses the address"},
	"bindinterface":                    {nil, "the system chooses the interface"},
	"proxyusefdpass":                   {[]string{"no"}, "it goes with ProxyCommand"},
	"tunnel":                           {[]string{"no"}, "no network device is made"},
	"protocol":                         {[]string{"2"}, "only version 2 is spoken"},
}

// Lists of algorithms that are honoured where they restrict. Those that add to the built-in ones or order them ("+", "^")
// are not needed.
var algorithmLists = []string{"ciphers", "macs", "kexalgorithms", "hostkeyalgorithms"}

// Settings without an effect here: what most of them are about is never done.
var ignored = strings.Fields(`addkeystoagent casignaturealgorithms gssapiauthentication hostbasedacceptedalgorithms
	pubkeyacceptedalgorithms pubkeyacceptedkeytypes batchmode challengeresponseauthentication channeltimeout checkhostip clearallforwardings
	compression compressionlevel connectionattempts controlmaster controlpath controlpersist dynamicforward enableescapecommandline
	enablesshkeysign escapechar exitonforwardfailure fingerprinthash forkafterauthentication forwardagent forwardx11
	forwardx11timeout forwardx11trusted gatewayports gssapidelegatecredentials hashknownhosts hostbasedauthentication ipqos
	kbdinteractiveauthentication kbdinteractivedevices localforward loglevel logverbose
	numberofpasswordprompts obscurekeystroketiming passwordauthentication permitremoteopen preferredauthentications
	rekeylimit remoteforward requesttty requiredrsasize sendenv sessiontype setenv stdinnull streamlocalbindmask
	streamlocalbindunlink syslogfacility tag tcpkeepalive tunneldevice updatehostkeys usekeychain useprivilegedport visualhostkey
	xauthlocation gssapikeyexchange gssapitrustdns gssapirenewalforcesrekey gssapikexalgorithms gssapiclientidentity
	gssapiserveridentity canonicaldomains canonicalizefallbacklocal canonicalizemaxdots canonicalizepermittedcnames`)

// lookup returns what holds for a host. user and port are those that are stated elsewhere, "" and 0 if they are not.
func (c *SSHConfig) lookup(name, user string, port int, by caller) (settings, error) {
	l := &look{name: name, by: by, set: map[string]bool{}, where: map[string]directive{}}
	l.s.user, l.s.port = user, port
	l.set["user"], l.set["port"] = user != "", port != 0
	// What is within "Match final" comes after everything else.
	for _, l.final = range []bool{false, true} {
		for _, d := range c.directives {
			if l.final && !slices.ContainsFunc(d.blocks, (*block).final) {
				continue
			}
			ok, err := l.holds(d.blocks)
			if err == nil && ok {
				err = l.apply(d)
			}
			if err != nil {
				return settings{}, err
			}
		}
	}
	if l.s.host == "" {
		l.s.host = name
	}
	l.s.host = strings.ToLower(l.s.host)
	if err := checkAddress(l.s.host); err != nil {
		return settings{}, l.at("hostname", err)
	}
	if l.s.user == "" {
		l.s.user = by.user
	}
	if err := checkUser(l.s.user); err != nil {
		return settings{}, l.at("user", err)
	}
	if l.s.port == 0 {
		l.s.port = 22
	}
	return l.s, l.expand()
}

// look is one lookup.
type look struct {
	name    string
	by      caller
	s       settings
	set     map[string]bool // first value wins
	where   map[string]directive
	files   []directive // of each identity file
	unknown []string    // IgnoreUnknown
	final   bool
}

func (b *block) final() bool {
	return slices.ContainsFunc(b.criteria, func(c criterion) bool { return c.name == "final" })
}

func (l *look) at(setting string, err error) error {
	if d, ok := l.where[setting]; ok {
		return at(d.file, d.line, "%w", err)
	}
	return err
}

// holds reports whether all blocks match.
func (l *look) holds(blocks []*block) (bool, error) {
	for _, b := range blocks {
		if !b.match {
			if !matches(l.name, b.patterns) {
				return false, nil
			}
			continue
		}
		for _, c := range b.criteria {
			var ok bool
			switch c.name {
			case "all":
				ok = true
			case "final":
				ok = l.final
			case "canonical":
				ok = false // names are taken as they are
			case "originalhost":
				ok = matches(l.name, c.patterns)
			case "host":
				ok = matches(first(l.s.host, l.name), c.patterns)
			case "user":
				ok = matches(first(l.s.user, l.by.user), c.patterns)
			case "localuser":
				ok = matches(l.by.user, c.patterns)
			default:
				return false, at(b.file, b.line, "Match %s cannot be honoured for %s", c.name, l.name)
			}
			if ok == c.negated {
				return false, nil
			}
		}
	}
	return true, nil
}

func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// apply takes one setting over.
func (l *look) apply(d directive) error {
	bad := func(format string, args ...any) error { return at(d.file, d.line, format, args...) }
	value := d.args[0]
	lower := strings.ToLower(value)
	key := d.name
	if key == "proxycommand" {
		key = "proxyjump" // whichever is first
	}
	if l.set[key] && d.name != "identityfile" {
		return nil
	}
	l.set[key], l.where[key] = true, d
	if r, ok := refused[d.name]; ok {
		if !slices.Contains(r.ok, lower) {
			return bad("%s %.80s is not honoured for %s: %s", d.name, value, l.name, r.why)
		}
		return nil
	}
	if slices.Contains(algorithmLists, d.name) {
		if l.s.algorithms == nil {
			l.s.algorithms = map[string]string{}
		}
		l.s.algorithms[d.name] = value
	}
	if len(d.args) > 1 && !slices.Contains([]string{"userknownhostsfile", "globalknownhostsfile", "ignoreunknown"}, d.name) &&
		!slices.Contains(ignored, d.name) && !matches(d.name, l.unknown) {
		return bad("%s has more than one value", d.name)
	}
	var err error
	switch d.name {
	case "hostname":
		l.s.host, err = tokens(value, map[byte]string{'h': l.name})
	case "user":
		l.s.user, err = value, checkUser(value)
	case "port":
		if l.s.port, err = strconv.Atoi(value); err != nil || l.s.port == 0 || checkPort(l.s.port) != nil {
			return bad("%.80q is no port", value)
		}
	case "identityfile":
		if lower != "none" {
			if l.s.identityFiles, l.files = append(l.s.identityFiles, value), append(l.files, d); len(l.files) > 64 {
				return bad("there are more than 64 identity files")
			}
		}
	case "identitiesonly":
		l.s.identitiesOnly, err = yes(lower)
	case "proxyjump":
		if lower != "none" {
			l.s.jump = strings.Split(value, ",")
		}
	case "userknownhostsfile":
		l.s.knownHosts = filesOf(d.args)
	case "globalknownhostsfile":
		l.s.systemHosts = filesOf(d.args)
	case "connecttimeout":
		l.s.timeout, err = seconds(lower)
	case "serveraliveinterval":
		l.s.alive, err = seconds(lower)
		l.s.aliveSet = true
	case "serveralivecountmax":
		if l.s.aliveMax, err = strconv.Atoi(value); err != nil || l.s.aliveMax < 1 || l.s.aliveMax > 1000 {
			return bad("%.80q is no number of 1 to 1000", value)
		}
	case "hostkeyalias":
		l.s.alias, err = value, checkAddress(value)
	case "identityagent":
		l.s.agent = value
	case "addressfamily":
		network, ok := map[string]string{"any": "tcp", "inet": "tcp4", "inet6": "tcp6"}[lower]
		if l.s.network = network; !ok {
			return bad("%.80q is no family of addresses", value)
		}
	case "ignoreunknown":
		for _, a := range d.args {
			l.unknown = append(l.unknown, strings.Split(strings.ToLower(a), ",")...)
		}
	default:
		if !slices.Contains(algorithmLists, d.name) && !slices.Contains(ignored, d.name) && !matches(d.name, l.unknown) {
			return bad("no setting is named %.40q", d.name)
		}
	}
	if err != nil {
		return bad("%w", err)
	}
	return nil
}

func filesOf(args []string) []string {
	if len(args) == 1 && strings.EqualFold(args[0], "none") {
		return []string{}
	}
	return args
}

func yes(s string) (bool, error) {
	switch s {
	case "yes", "true":
		return true, nil
	case "no", "false":
		return false, nil
	}
	return false, invalid("%.80q is neither yes nor no", s)
}

// seconds reads a time as sshd_config(5) has it: 90, 1m30s, 2h, 1d, 1w.
func seconds(s string) (time.Duration, error) {
	units := map[byte]int64{'s': 1, 'm': 60, 'h': 3600, 'd': 86400, 'w': 604800}
	var total, n int64
	digits := false
	for i := range len(s) {
		c := s[i]
		if c >= '0' && c <= '9' && n < 1<<32 {
			n, digits = n*10+int64(c-'0'), true
			continue
		}
		u, ok := units[c]
		if !ok || !digits {
			return 0, invalid("%.80q is no time", s)
		}
		total, n, digits = total+n*u, 0, false
	}
	if total += n; s == "" || total > 1<<31 {
		return 0, invalid("%.80q is no time", s)
	}
	return time.Duration(total) * time.Second, nil
}

// expand replaces tokens and "~/" in the values that have them.
func (l *look) expand() error {
	values := map[byte]string{
		'h': l.s.host, 'n': l.name, 'p': strconv.Itoa(l.s.port), 'r': l.s.user, 'u': l.by.user, 'd': l.by.home,
	}
	one := func(d directive, s *string) (err error) {
		if strings.Contains(*s, "${") {
			return at(d.file, d.line, "%.80q: variables of the environment are not honoured", *s)
		}
		if *s, err = tokens(*s, values); err == nil {
			*s, err = l.by.path(*s)
		}
		if err != nil {
			return at(d.file, d.line, "%w", err)
		}
		return nil
	}
	for i, d := range l.files {
		if err := one(d, &l.s.identityFiles[i]); err != nil {
			return err
		}
	}
	l.s.knownHosts, l.s.systemHosts = slices.Clone(l.s.knownHosts), slices.Clone(l.s.systemHosts)
	for i := range l.s.knownHosts {
		if err := one(l.where["userknownhostsfile"], &l.s.knownHosts[i]); err != nil {
			return err
		}
	}
	for i := range l.s.systemHosts {
		if err := one(l.where["globalknownhostsfile"], &l.s.systemHosts[i]); err != nil {
			return err
		}
	}
	if a := l.s.agent; a != "" && a != "none" && a != "SSH_AUTH_SOCK" {
		return one(l.where["identityagent"], &l.s.agent)
	}
	return nil
}

// path returns a path with the caller's home directory for "~/". One that is not absolute then is an error.
func (by caller) path(s string) (string, error) {
	if rest, ok := strings.CutPrefix(s, "~/"); ok {
		s = filepath.Join(by.home, rest)
	}
	if err := checkPath(s); err != nil {
		return "", err
	}
	if !filepath.IsAbs(s) {
		return "", invalid("%.80q is no absolute path and does not begin with ~/", s)
	}
	return s, nil
}

// tokens replaces %x by values['x'], and %% by %.
func tokens(s string, values map[byte]string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i++; i >= len(s) {
			return "", invalid("%.80q ends with %%", s)
		}
		v, ok := values[s[i]]
		if s[i] == '%' {
			v, ok = "%", true
		}
		if !ok {
			return "", fmt.Errorf("%.80q: %w", s, invalid("%%%c is not honoured", s[i]))
		}
		b.WriteString(v)
	}
	return b.String(), nil
}

// Describe says in one line what the configuration makes of a host, for a person who asks why it is reached as it is. user and
// home are those of the caller.
func (c *SSHConfig) Describe(name, user, home string) (string, error) {
	s, err := c.lookup(name, "", 0, caller{user, home})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s@%s:%d", s.user, s.host, s.port)
	more := func(is bool, format string, args ...any) {
		if is {
			fmt.Fprintf(&b, " "+format, args...)
		}
	}
	more(s.alias != "", "alias=%s", s.alias)
	more(len(s.identityFiles) > 0, "keys=%v", s.identityFiles)
	more(s.identitiesOnly, "only")
	more(len(s.jump) > 0, "jump=%v", s.jump)
	more(s.knownHosts != nil, "known=%v", s.knownHosts)
	more(s.systemHosts != nil, "system=%v", s.systemHosts)
	more(s.timeout != 0, "timeout=%v", s.timeout)
	if s.aliveSet {
		more(true, "alive=%v", s.alive)
		if s.aliveMax != 0 {
			fmt.Fprintf(&b, "/%d", s.aliveMax)
		}
	}
	more(s.agent != "", "agent=%s", s.agent)
	more(s.network != "", "network=%s", s.network)
	return b.String(), nil
}
