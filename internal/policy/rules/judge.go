package rules

import (
	"path"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// judge turns the facts of one question into segments with effects. Rules are matched afterwards.
type judge struct {
	room  *room
	k     *knowledge
	q     *Question
	facts *shell.Facts
	segs  []*segment
	// dir is the directory of relative paths, as cd sets it; empty if unknown.
	dir string
	// outside is dir before a subshell changed it.
	outside *string
	// depth counts commands nested in words of others.
	depth  int
	limits shell.Limits
	names  map[string]bool // functions defined in the text
	// inside says that the command runs in a workspace with a verified boundary.
	inside bool
	// below says that the words of the command stand for all files below them; see nestedBelow.
	below bool
	// byFact holds the segment of each command of the facts.
	byFact []*segment
}

// Limits on commands within words.
const (
	maxNesting  = 24
	maxSegments = 8192
	maxEffects  = 256
)

// segment is one command while it is judged.
type segment struct {
	words   []shell.Word
	text    string
	program string
	via     string
	caps    Set
	// outer holds the capabilities of assignments and redirects, which no flag removes.
	outer   Set
	effects []effect
	paths   []string
	spec    *spec
	// index is the command's index in the facts, -1 for a command in words.
	index int
	// nested says that the facts include its shell texts.
	nested bool
	fact   *shell.Command // nil for a command in words
	// top says that it is a command of the text itself, and not within another's words.
	top bool
	// wraps is what a command does that only runs the commands after it; changes and more are what the rules found: it does
	// more than look, and a rule asks for more than a model's first run or the wrapping.
	wraps         Capability
	changes, more bool
}

// effect is a capability and the word that gives it.
type effect struct {
	cap Capability
	why string
}

func (s *segment) add(c Capability, why string) {
	if c == NoCapability {
		return
	}
	s.caps |= 1 << c
	if len(s.effects) < maxEffects {
		s.effects = append(s.effects, effect{c, why})
	}
}

// drop removes capabilities that do not apply.
func (s *segment) drop(set Set) { s.caps &^= set &^ s.outer }

func (s *segment) addSet(set Set, why string) {
	for c := range set.All() {
		s.add(c, why)
	}
}

func newJudge(r *room, k *knowledge, q *Question, facts *shell.Facts, limits shell.Limits) *judge {
	j := &r.judge
	*j = judge{room: r, segs: r.segs, k: k, q: q, facts: facts, limits: limits, dir: q.Dir, inside: q.Profile == Workspace && q.Verified}
	if len(facts.Functions) > 0 {
		j.names = make(map[string]bool, len(facts.Functions))
		for _, f := range facts.Functions {
			j.names[f] = true
		}
	}
	return j
}

// all judges every command of the facts and the commands they run.
func (j *judge) all() {
	j.byFact = make([]*segment, len(j.facts.Commands))
	j.whole()
	for i := range j.facts.Commands {
		c := &j.facts.Commands[i]
		s := j.segment(c.Argv, c.Text, "")
		if s == nil {
			return
		}
		s.index, s.fact, s.top = i, c, j.depth == 0
		j.byFact[i] = s
		if j.outside != nil && !c.Context.Subshell {
			j.dir, j.outside = *j.outside, nil
		}
		j.assigns(s, c.Assigns, len(c.Argv) == 0)
		j.redirects(s, c.Redirects)
		s.outer = s.caps
		j.command(s)
		j.sends(s)
		j.standing(s, c)
	}
	for _, s := range j.byFact {
		s.wraps = j.wraps(s)
	}
	j.fetched()
}

// whole adds a segment for facts about the whole text.
func (j *judge) whole() {
	s := j.room.segment()
	for _, t := range j.facts.Troubles {
		switch t.Kind {
		case shell.Unparseable:
			s.add(ShellParse, t.Why)
		case shell.TooLong, shell.TooDeep, shell.TooMany, shell.BadInput:
			s.add(InputInvalid, t.Why)
		default:
			s.add(InputInvalid, t.Why)
		}
	}
	for i, o := range j.facts.Oddities {
		if i == 8 {
			break
		}
		what := "character U+" + hex4(o.Rune)
		switch o.Kind {
		case shell.Control, shell.Bidi, shell.Invisible:
			s.add(InputInvalid, string(o.Kind)+" "+what)
		case shell.LookAlike, shell.OddSpace:
			s.add(ShellObfuscated, string(o.Kind)+" "+what)
		default:
			s.add(InputInvalid, what)
		}
	}
	if j.facts.Empty && len(j.facts.Commands) == 0 && len(j.facts.Troubles) == 0 {
		s.add(ShellEmpty, "")
	}
	j.redirects(s, j.facts.Redirects)
	for _, name := range j.facts.Functions {
		if j.lookup(name) != nil {
			s.add(EnvironmentPoison, "a function named as the program "+name)
		}
	}
	for name, value := range j.facts.Aliases {
		// ls='ls --color' is still ls.
		if first, _, _ := strings.Cut(strings.TrimSpace(value), " "); first != name && j.lookup(name) != nil {
			s.add(EnvironmentPoison, "an alias named as the program "+name)
		}
	}
	for i := range j.q.Env {
		name, value, _ := strings.Cut(j.q.Env[i], "=")
		j.assign(s, name, shell.Word{Text: value, Source: value})
	}
	if s.caps != 0 {
		j.segs = append(j.segs, s)
	}
}

func hex4(r rune) string {
	const digits = "0123456789ABCDEF"
	b := []byte{}
	for shift := 20; shift >= 0; shift -= 4 {
		d := (r >> shift) & 15
		if d != 0 || len(b) > 0 || shift < 16 {
			b = append(b, digits[d])
		}
	}
	return string(b)
}

// segment starts a segment; nil if there are too many.
func (j *judge) segment(words []shell.Word, text, via string) *segment {
	if len(j.segs) >= maxSegments || j.depth > maxNesting {
		if len(j.segs) > 0 {
			j.segs[0].add(InputInvalid, "commands within commands are too deep or too many to judge")
		}
		return nil
	}
	s := j.room.segment()
	s.words, s.text, s.via = words, text, via
	j.segs = append(j.segs, s)
	return s
}

// standing adds effects that follow from a command's place: its pipes, redirects and loops.
func (j *judge) standing(s *segment, c *shell.Command) {
	j.carrels(s)
	j.weakens(s)
	if c.Into < 0 && endlessReaders[s.program] {
		for i := 1; i < len(s.words); i++ {
			if t := s.words[i].Text; t == "/dev/zero" || t == "/dev/urandom" || t == "/dev/random" {
				s.add(ResourceExhaust, t)
			}
		}
	}
	j.endless(s, c)
	if c.From >= 0 && (s.program == "read" || s.program == "mapfile" || s.program == "readarray") {
		j.heard(s, c.From)
	}
	for _, r := range c.Redirects {
		switch {
		case r.Mode == shell.Read && s.caps.Has(NetworkQuery) && r.Target.Text != "/dev/null":
			s.add(NetworkOut, r.Target.Text) // the file is sent in the query
		case r.Mode == shell.Read && (r.Target.Text == "/dev/zero" || r.Target.Text == "/dev/urandom") && c.Into < 0 && endlessReaders[s.program]:
			s.add(ResourceExhaust, r.Target.Text)
		case s.program == "yes" && (r.Mode == shell.Write || r.Mode == shell.Append) && !harmlessTargets[r.Target.Text]:
			s.add(ResourceExhaust, "endless output to "+r.Target.Text)
		}
	}
	if c.From < 0 && s.spec != nil && j.readsCode(s) && !shells[s.spec.name] {
		if !inputGiven(c) {
			j.unseen(s)
		}
		for _, r := range c.Redirects {
			switch r.Mode {
			case shell.Heredoc, shell.String:
				s.add(CodeExecute, r.Target.Text)
				j.codeText(s, r.Target.Text)
			case shell.Read, shell.ReadWrite:
				s.add(CodeExecute, r.Target.Text)
			case shell.Write, shell.Append, shell.Duplicate:
			}
		}
	}
	if c.From >= 0 && s.spec != nil && shells[s.spec.name] && s.caps.Has(ShellDynamic) && j.sourceOf(c.From) != NoCapability {
		s.add(RemoteCodeExecute, j.facts.Commands[c.From].Text+" | "+s.text)
	}
	if c.From >= 0 && s.spec != nil && j.readsCode(s) {
		if text := j.echoed(c.From); text != "" && !shells[s.spec.name] {
			j.codeText(s, text)
		}
		source := j.sourceOf(c.From)
		if source == NoCapability {
			s.add(CodeExecute, "what is piped into "+s.program)
		} else {
			s.add(RemoteCodeExecute, j.facts.Commands[c.From].Text+" | "+s.program)
		}
	}
}

// changing are capabilities that harm their target.
var changing = SetOf(ServiceMutate, ProcessSignal, ProcessTrace, AccountMutate, PackageMutate, Persistence, PrivilegeEscalate,
	ProcessPriority, NetworkConfigure, FilesystemMount)

// takesProcesses are programs that send signals to processes by number. A number of others is a session, a window or a port.
var takesProcesses = set(`kill pkill skill snice`)

// carrels adds carrel.tamper for carrel's programs and users given by name.
func (j *judge) carrels(s *segment) {
	if s.caps&SetOf(ServiceMutate, ProcessSignal, PackageMutate) != 0 {
		for _, w := range s.words[min(1, len(s.words)):] {
			if recorders.MatchString(w.Text) {
				s.add(LogTamper, w.Text)
			}
			if guards.MatchString(w.Text) && stops(s.words) {
				s.add(SecurityDisable, w.Text)
			}
		}
	}
	if j.inside && (s.caps.Has(ProcessSignal) && takesProcesses[s.program] || s.caps&SetOf(ProcessTrace, ProcessPriority) != 0) {
		for i := 1; i < len(s.words); i++ {
			if s.words[i].Text == "1" && (i == len(s.words)-1 || s.words[i-1].Text == "-p") {
				s.add(CarrelTamper, "process 1 of a workspace is carrel's executor")
			}
		}
	}
	if s.caps&changing == 0 || s.spec != nil && (s.spec.name == "carrel" || s.spec.name == "carrel-cli") {
		return
	}
	for i, w := range s.words[min(1, len(s.words)):] {
		if w.Text == "carrel" && i > 0 && s.program == "sudo" && (s.words[i].Text == "-u" || s.words[i].Text == "--user") {
			s.add(CarrelTamper, "acts as carrel")
			return
		}
		if strings.Contains(w.Text, "carrel") && !strings.Contains(w.Text, "/") || carrelPrograms.MatchString(w.Text) {
			if s.caps&SetOf(PrivilegeEscalate) != 0 && s.caps&(changing&^SetOf(PrivilegeEscalate)) == 0 && s.program == "sudo" {
				continue // the command behind sudo is judged itself
			}
			s.add(CarrelTamper, w.Text)
			return
		}
	}
}

// recorders and guards are services that log and protect.
var (
	recorders = lazy(`^(?:.*(?:pidof|pgrep)[^)]*\s)?(?:auditd|rsyslogd?|syslog(?:-ng)?|systemd-journald|journald|osqueryd|` +
		`sysstat|acct|psacct)(?:\.service|\.socket)?\)?$`)
	guards = lazy(`^(?:auditd|apparmor|selinux.*|fail2ban(?:-server)?|ufw|firewalld|nftables|iptables|clamav.*|clamd|falco|` +
		`falcon-sensor|wazuh-.*|ossec|osqueryd|crowdsec|aide.*|snort|suricata|sshguard|mdatp|cbdaemon|ebtables|` +
		`opensnitchd?|usbguard|denyhosts)(?:\.service)?$`)
)

// stops reports whether the words stop or remove something.
func stops(words []shell.Word) bool {
	for i := range words {
		switch programName(words[i].Text) {
		case "stop", "disable", "mask", "kill", "pkill", "killall", "remove", "purge", "erase", "--now":
			return true
		}
	}
	return false
}

var carrelPrograms = lazy(`\bcarrel(?:d|-(?:broker|executor|egress|agent|archive|hostrun|cli))\b`)

// readsCode reports whether a command runs its standard input as code.
func (j *judge) readsCode(s *segment) bool { return s.caps.Has(interpretsInput) }

// sourceOf follows a pipe to its start and returns RemoteCodeExecute if the data is fetched or
// decoded.
func (j *judge) sourceOf(i int) Capability {
	for n := 0; i >= 0 && n < 64; n++ {
		s := j.byFact[i]
		if s == nil {
			return RemoteCodeExecute // not judged yet
		}
		if s.caps&SetOf(NetworkIn, NetworkOut, NetworkQuery, RemoteCodeExecute, ShellDynamic) != 0 ||
			s.spec != nil && decoders[s.spec.name] || j.decoded(i) {
			return RemoteCodeExecute
		}
		i = j.facts.Commands[i].From
	}
	return NoCapability
}

// decoders transform their input into other text.
var decoders = set(`
	base64 base32 basenc xxd openssl uudecode rev tr gzip zcat bzip2 xz sed awk gpg dd od hexdump python perl printf
	cut`)

// poisonous are prefixes of variables that hold settings of programs, some of them commands.
var poisonous = strings.Fields(`BASH_FUNC_ GIT_CONFIG_KEY_ GIT_CONFIG_VALUE_ npm_config_ NPM_CONFIG_ CARGO_TARGET_ CARGO_BUILD_
	PIP_ UV_INDEX LD_`)

// interpretsInput marks a command that runs its standard input. It is not a capability; knowledge
// writes it as stdin.code.
const interpretsInput = Capability(63)

// command judges one command by its words.
func (j *judge) command(s *segment) {
	if len(s.words) == 0 {
		return
	}
	for i := range s.words {
		if s.words[i].Hidden {
			s.add(ShellObfuscated, s.words[i].Source)
			break
		}
	}
	for i := range s.words {
		if s.words[i].Dynamic && strings.Contains(s.words[i].Source, "@P}") {
			s.add(ShellObfuscated, s.words[i].Source) // the value is expanded again
		}
		if strings.Contains(s.words[i].Text, "StrictHostKeyChecking=no") {
			s.add(SecurityDisable, s.words[i].Text)
		}
	}
	w := &s.words[0]
	if w.Dynamic && j.loopedProgram(s) {
		return
	}
	if w.Dynamic || w.Glob || w.Many {
		s.add(ShellDynamic, w.Source)
		if w.Glob {
			s.add(ShellObfuscated, w.Source)
		}
		return
	}
	if w.Text == "" {
		s.add(ProgramUnknown, "an empty name")
		return
	}
	if name := w.Text; j.names[name] {
		if c := s.fact; c != nil && c.Context.Function == name && (c.Context.Background || c.From >= 0 || c.Into >= 0) {
			s.add(ResourceExhaust, name+" calls itself again and again")
		}
		s.program = w.Text
		for _, a := range s.words[1:] {
			if strings.ContainsAny(a.Text, "/~") {
				j.pathEffect(s, a, accessRead)
			}
		}
		return // the body is judged where it is defined
	}
	name := j.programName(s, w.Text)
	sp := j.lookup(name)
	if name == "" || sp == nil {
		s.add(ProgramUnknown, w.Text)
		if strings.Contains(w.Text, "/") {
			j.pathEffect(s, *w, accessRead)
			s.add(CodeExecute, w.Text)
			// It may be the program of that name, but nothing proves it.
			if sp := j.lookup(path.Base(w.Text)); sp != nil && !shells[sp.name] {
				s.program, s.spec = path.Base(w.Text), sp
				j.apply(s, sp, s.words)
				s.add(ProgramUnknown, w.Text)
				return
			}
		}
		// Its words may still be paths.
		for _, a := range s.words[1:] {
			if strings.ContainsAny(a.Text, "/~.") {
				j.pathEffect(s, a, accessRead)
			}
		}
		if name != "" {
			j.spoken(s, false)
		}
		return
	}
	s.program, s.spec = name, sp
	if len(s.words) == 2 && !sp.plain {
		switch s.words[1].Text {
		case "--version", "--help", "-V", "-version":
			return
		}
	}
	if sp.asksHelp(s.words) {
		return
	}
	j.apply(s, sp, s.words)
	if s.caps.Has(ProgramUnknown) || s.caps&mayBeSpoken != 0 {
		j.spoken(s, s.caps&^(harmless|SetOf(ProgramUnknown)) != 0)
	}
	j.leadsElsewhere(s)
	j.variableNames(s)
	if s.nested {
		j.sends(s)
	}
}

// splits are builtins that split lines by an IFS set for them alone.
var splits = set(`read mapfile readarray`)

// assigns judges assignments.
func (j *judge) assigns(s *segment, as []shell.Assign, bare bool) {
	for i := range as {
		if as[i].Name == "IFS" && !bare && len(s.words) > 0 && splits[s.words[0].Text] && !as[i].Value.Dynamic {
			continue // IFS is restored after the line
		}
		j.assign(s, as[i].Name, as[i].Value)
		if as[i].Value.Hidden {
			s.add(ShellObfuscated, as[i].Value.Source)
		}
	}
}

// assign judges an assignment. The variable may be exported already, so it always counts.
func (j *judge) assign(s *segment, name string, value shell.Word) {
	if (name == "LESS" || name == "MORE") && strings.Contains(value.Text, "+") {
		s.add(CodeExecute, name+"="+value.Text) // a command of the pager
	}
	v := j.k.variable(name)
	if v == nil {
		if beginsWith(name, poisonous...) || strings.HasPrefix(value.Text, "() {") {
			s.add(EnvironmentPoison, name+"="+value.Text)
		}
		return
	}
	if v.role.apply != nil {
		v.role.apply(j, s, []shell.Word{value})
	}
	s.addSet(v.caps, name+"="+value.Text)
}
