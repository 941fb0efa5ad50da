package policy

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/shell"
)

// Code of other languages is not read; these words in it say what else it does.
var codeWords = []struct {
	pattern *lazyRegexp
	caps    Set
}{
	{lazy(`\b(?:os\.system|subprocess|popen|exec[lv]p?e?\b|spawn|child_process|system\s*\(|shell_exec|passthru|Process\.|Runtime\.getRuntime|qx[/{(]|` + "`" + `[^` + "`" + `]+` + "`" + `|pty\.)`), SetOf(CommandExecute)},
	{lazy(`(?i)\b(?:socket|urllib|requests\.|http\.client|httplib|urlopen|fetch\s*\(|net\.connect|TCPSocket|IO::Socket|LWP|open-uri|Net::HTTP|fsockopen|paramiko|https?\.(?:request|get)\b|axios|aiohttp|httpx|XMLHttpRequest|ftplib|smtplib|curl_exec|file_get_contents\s*\(\s*['"]https?)`), SetOf(NetworkOut)},
	{lazy(`(?i)\b(?:HTTPServer|socketserver|\.listen\s*\(|TCPServer|\.bind\s*\(|createServer)`), SetOf(NetworkListen)},
	{lazy(`(?i)(?:rmtree|rmSync|rm_rf|remove_tree|remove)\b.*(?:expanduser|homedir|\$ENV\{HOME\}|ENV\[.HOME|os\.environ\[.HOME|Path\.home|['"](?:/|~|/home|/etc|/usr|/var)/?['"])`), SetOf(FilesystemDestroy)},
	{lazy(`\b(?:shutil\.rmtree|os\.remove|os\.unlink|unlink\b|rmdir|rmSync|rm_rf|FileUtils\.rm|File\.delete|remove_tree|rmtree|os\.truncate)`), SetOf(FilesystemDelete)},
	{lazy(`(?:\bopen\s*\([^)]*['"][wax]b?\+?['"]|writeFile|write_text|write_bytes|File\.write|file_put_contents|shutil\.(?:copy|move)|os\.rename|appendFile|copyFile)`), SetOf(FilesystemWrite)},
	{lazy(`\b(?:os\.setuid|setuid|setgid|seteuid|POSIX::setuid)\b`), SetOf(PrivilegeEscalate)},
	{lazy(`\b(?:os\.chmod|os\.chown|chmodSync)\b`), SetOf(FilesystemPermission)},
	{lazy(`\bos\.kill\b|process\.kill`), SetOf(ProcessSignal)},
	{lazy(`(?i)(?:b64decode|base64|fromCharCode|unhexlify|pack\s*\(\s*['"]H|codecs\.decode|atob\s*\(|zlib\.decompress|marshal\.loads|Buffer\.from\([^)]*(?:base64|hex))`), SetOf(ShellObfuscated)},
	{lazy(`(?i)fork\s*(?:\(\s*\))?\s*while|while\s*(?:True|1|\(1\))?.*\bfork\b`), SetOf(ResourceExhaust)},
}

var quotedPath = lazy(`['"\s(](~?/[^'"\s)]+|\.env)\b`)

// codeText looks for what a code says plainly. It finds no more than that: code.execute
// asks for a person anyway.
func (j *judge) codeText(s *segment, code string) {
	for i := range codeWords {
		if codeWords[i].caps&^s.caps != 0 && codeWords[i].pattern.MatchString(code) {
			s.addSet(codeWords[i].caps, code)
		}
	}
	for _, m := range quotedPath.compiled().FindAllStringSubmatch(code, 32) {
		a := accessRead
		if s.caps.Has(FilesystemWrite) {
			a = accessWrite
		}
		j.pathEffect(s, shell.Word{Text: m[1]}, a)
		if s.caps.Has(FilesystemDelete) {
			j.pathEffect(s, shell.Word{Text: m[1]}, accessDelete)
		}
	}
}

// sql judges statements.
func (j *judge) sql(s *segment, w shell.Word) {
	if sqlPrograms.MatchString(w.Text) {
		s.add(CodeExecute, w.Text)
		s.add(DatabaseMutate, w.Text)
		return
	}
	for one := range strings.SplitSeq(w.Text, ";") {
		if !sqlReads.MatchString(one) || sqlWrites.MatchString(one) || w.Dynamic && strings.TrimSpace(one) == w.Text && strings.HasPrefix(strings.TrimSpace(one), "$") {
			s.add(DatabaseMutate, w.Text)
		}
		if sqlFiles.MatchString(one) {
			s.add(SecretRead, w.Text)
		}
	}
}

var sqlFiles = lazy(`(?is)\b(?:pg_shadow|pg_authid|mysql\.user|authentication_string|passwd_hash|password_hash)\b`)

var vimCommand = lazy(`(?s)^\s*:?\s*(?:silent!?\s*)?(?:!|r(?:ead)?\s*!|w(?:rite)?\s*!|%!|system\(|call\s+system|py(?:thon)?3?\b|pyx\b|lua\b|perl\b|ruby\b|tcl\b|source\b|so\b|term\b|terminal\b|exe(?:cute)?\b)\s*(.*)$`)

// vim judges a command given to vim.
func (j *judge) vim(s *segment, w shell.Word) {
	if m := vimCommand.FindStringSubmatch(w.Text); m != nil {
		s.add(CodeExecute, w.Text)
		if strings.Contains(w.Text, "!") {
			j.shellText(s, part(w, m[1]))
		}
		return
	}
	if strings.ContainsAny(w.Text, "!|") || strings.Contains(w.Text, "system") {
		s.add(CodeExecute, w.Text)
	}
	s.add(FilesystemWrite, w.Text)
}

var mongoReads = lazy(`(?s)^\s*(?:printjson\s*\(|print\s*\(|JSON\.stringify\s*\()?\s*(?:db\.(?:stats|serverStatus|version|getCollectionNames|getName|hostInfo|currentOp|getUsers|serverBuildInfo|isMaster|hello)\s*\(\s*\)|db\.[A-Za-z_]+\.(?:find|findOne|count|countDocuments|estimatedDocumentCount|distinct|stats|getIndexes|explain)\s*\([^$]*\)(?:\.(?:limit|sort|pretty|toArray|count|explain)\s*\([^)]*\))*|rs\.(?:status|conf|printReplicationInfo)\s*\(\s*\)|sh\.status\s*\(\s*\)|show\s+\w+|db\.adminCommand\s*\(\s*\{?\s*['"]?(?:ping|listDatabases|serverStatus)['"]?.*\))\s*\)*(?:\.ok)?\s*;?\s*$`)

func (j *judge) mongo(s *segment, w shell.Word) {
	if !mongoReads.MatchString(w.Text) {
		s.add(DatabaseMutate, w.Text)
		s.add(CodeExecute, w.Text)
	}
}

var (
	sqlReads    = lazy(`(?is)^\s*(?:(?:select|show|describe|desc|explain|with|values|table|pragma\s+[a-z_]+(?:\([^)]*\))?)\b[^;]*|\\(?:d[a-zA-Z+]*|l\+?|conninfo|du|dn|dt|x|timing)\b[^;\n]*|\.(?:tables|schema|databases|indexes|indices|headers|mode|dbinfo)\b[^;\n]*)?;?\s*$`)
	sqlWrites   = lazy(`(?is)\b(?:into\s+(?:outfile|dumpfile)|insert|update|delete|drop|alter|create|truncate|grant|revoke|copy|call|do|load|replace|vacuum|reindex|pg_terminate_backend|pg_cancel_backend|pg_reload_conf|pg_read_file|lo_import|lo_export|dblink|set_config|nextval|setval|load_extension|load_file|writefile|edit|xp_cmdshell|sleep|into)\b`)
	sqlPrograms = lazy(`(?is)\b(?:copy\b.*\bprogram\b|xp_cmdshell|sys_exec|sys_eval|lib_mysqludf)|^\s*(?:\\!|\.shell\b|\.system\b|system\s)|[\n;]\s*(?:\\!|\.shell|\.system)`)
)
