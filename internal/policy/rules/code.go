package rules

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// codeWords are words in code of other languages that name its effects. The code itself is not
// parsed.
var codeWords = []struct {
	pattern *lazyRegexp
	caps    Set
}{
	{lazy(`\b(?:os\.system|subprocess|popen|exec[lv]p?e?\b|spawn|child_process|system\s*\(|shell_exec|passthru|` +
		`Process\.|Runtime\.getRuntime|qx[/{(]|\x60[^\x60]+\x60|pty\.)`), SetOf(CommandExecute)},
	{lazy(`(?i)\b(?:socket|urllib|requests\.|http\.client|httplib|urlopen|fetch\s*\(|net\.connect|TCPSocket|` +
		`IO::Socket|LWP|open-uri|Net::HTTP|fsockopen|paramiko|https?['")]*\.(?:request|get)\b|axios|aiohttp|` +
		`httpx|XMLHttpRequest|ftplib|smtplib|curl_exec|file_get_contents\s*\(\s*['"]https?)`), SetOf(NetworkOut)},
	{lazy(`(?i)\b(?:urlretrieve|urlopen|requests\.get|getstore|getprint|LWP::Simple|URI\.open|open-uri|` +
		`https?\.get\b|wget\.download|download\.file|file_get_contents\s*\(\s*['"]https?)`), SetOf(NetworkIn)},
	{lazy(`(?is)\b(?:eval|exec|Function|instance_eval|loadstring|assert)\b.*(?:urlopen|requests\.get|URI\.open|` +
		`open-uri|LWP::|https?\.get\b|file_get_contents\s*\(\s*['"](?:https?|ftp|php):|\bget\s*\(\s*['"]https?:|` +
		`fetch\s*\()|(?:urlopen|requests\.get|URI\.open|open-uri|LWP::|https?['")]*\.get\b|` +
		`\bget\s*\(\s*['"]https?:|fetch\s*\().*\b(?:eval|exec|Function)\b`), SetOf(RemoteCodeExecute)},
	{lazy(`(?i)\b(?:HTTPServer|socketserver|\.listen\s*\(|TCPServer|HTTP::Daemon|WEBrick|serve_forever|\.bind\s*\(|` +
		`createServer)|\bListen(?:Port)?\s*=>`), SetOf(NetworkListen)},
	{lazy(`(?i)\b(?:smtplib|Net::SMTP|nodemailer|Mail::Sendmail)\b|\bmail\s*\(\s*['"]`), SetOf(MessageSend, NetworkOut)},
	{lazy(`(?:print|dump|puts|log|dict|join|items|keys|for|in|each|-p|JSON|^)\W*(?:%ENV\b|ENV\.(?:to_h|to_a|each|` +
		`inspect|map)|os\.environ\s*(?:[)\];,}]|\.(?:items|values|copy)|$)|\$_ENV\s*(?:[)\];,}]|$)|` +
		`getenv\(\s*\))|^ENV$|%ENV\s*(?:$|[)};])`), SetOf(SecretRead)},
	{lazy(`\bprocess\.env\s*(?:[)\];,}]|$)|\bp(?:p|uts|rint)?\s+ENV\s*$|\\%ENV|(?i:(?:environ|getenv|` +
		`ENV)\b\S{0,6}['".\[({]+\w*(?:TOKEN|SECRET|PASSW|_KEY|CREDENTIAL))|\bkeyring\.get_password|` +
		`\bSECRET_KEY\b|\bDB_PASSWORD\b|credentials\.(?:to_|config|read|dig|\w+_key)`), SetOf(SecretRead)},
	{lazy(`(?i)\bverify\s*=\s*False|VERIFY_NONE|rejectUnauthorized\s*:\s*false|InsecureSkipVerify|` +
		`_create_unverified_context|verify_peer['"]?\s*=>\s*(?:false|0)`), SetOf(SecurityDisable)},
	{lazy(`\binstall\.packages|\b(?:remotes|devtools|pak|renv)::\w*install|BiocManager::install|\bPkg\.(?:add|rm|` +
		`update|develop)|\bCPAN\b|\bpip\.main|\bensurepip\b`), SetOf(PackageMutate)},
	{lazy(`(?i)(?:rmtree|rmSync|rm_rf|remove_tree|remove)\b.*(?:expanduser|homedir|\$ENV\{HOME\}|ENV\[.HOME|` +
		`os\.environ\[.HOME|Path\.home|['"](?:/|~|/home|/etc|/usr|/var)/?['"])`), SetOf(FilesystemDestroy)},
	{lazy(`\b(?:shutil\.rmtree|os\.remove|os\.unlink|unlink\b|unlinkSync|rmdir|rmSync|rm_rf|FileUtils\.rm|` +
		`File\.delete|remove_tree|rmtree|os\.truncate|os\.remove|delete-file|delete-directory)|` +
		`\bdelete\s*\(\s*['"]|\[\s*os\.remove`), SetOf(FilesystemDelete)},
	{lazy(`(?:\bopen\s*\([^)]*['"][wax]b?\+?['"]|writeFile|write_text|write_bytes|File\.write|file_put_contents|` +
		`shutil\.(?:copy|move)|os\.rename|appendFile|copyFile)|\btruncate(?:Sync)?\s*\(|` +
		`\bopen\s*\(?\s*(?:my\s*)?\$?\w+\s*,\s*['"]\s*\+?>|:w\b|\bio\.open\s*\([^)]*['"][wa]`), SetOf(FilesystemWrite)},
	{lazy(`\b(?:setuid|setgid|seteuid|setegid|setreuid|setresuid|posix_setuid|initgroups)\b`), SetOf(PrivilegeEscalate)},
	{lazy(`\b(?:os\.l?chmod|os\.l?chown|chmodSync|chownSync|FileUtils\.ch(?:mod|own))\b|\b(?:chmod|` +
		`chown)\b\s*\(?\s*[0-9'"$]`), SetOf(FilesystemPermission)},
	{lazy(`\bos\.kill(?:pg)?\b|process\.kill|Process\.kill|posix_kill|\bkill\s*\(?\s*['"]?-?\w+['"]?\s*,`), SetOf(ProcessSignal)},
	{lazy(`(?i)(?:b64decode|base64|fromCharCode|unhexlify|pack\s*\(\s*['"]H|codecs\.decode|atob\s*\(|` +
		`zlib\.decompress|marshal\.loads|Buffer\.from\([^)]*(?:base64|hex))`), SetOf(ShellObfuscated)},
	{lazy(`(?i)fork\s*(?:\(\s*\))?\s*while|while\s*(?:True|1|\(1\))?.*\bfork\b|\bloop\b\s*(?:\{|do)\s*fork|` +
		`fork\s*\(?\)?\s*for\b|for\s*\(\s*;\s*;\s*\).*\bfork\b`), SetOf(ResourceExhaust)},
}

var quotedPath = lazy(`['"\s(>|=](~?/[^'"\s)]+|\.env|\.(?:ssh|aws|kube|gnupg|docker|netrc|npmrc|pgpass|git-credentials)\b[^'"\s)]*)`)

var evaluates = lazy(`\b(?:eval|exec|instance_eval|Function|loadstring)\b`)

// codeText looks for effects that code names plainly. Code needs an approval anyway
// (code.execute), so it may miss some.
func (j *judge) codeText(s *segment, code string) {
	for i := range codeWords {
		if codeWords[i].caps&^s.caps != 0 && codeWords[i].pattern.MatchString(code) {
			s.addSet(codeWords[i].caps, code)
		}
	}
	if s.caps.Has(NetworkIn) && evaluates.MatchString(code) {
		s.add(RemoteCodeExecute, code)
	}
	j.codeRuns(s, code)
	j.codePaths(s, code)
}

// codePaths judges the paths in code.
func (j *judge) codePaths(s *segment, code string) {
	for _, m := range quotedPath.compiled().FindAllStringSubmatch(homes.Replace(code), 32) {
		j.pathEffect(s, shell.Word{Text: m[1]}, accessRead)
		if s.caps.Has(FilesystemWrite) {
			j.pathEffect(s, shell.Word{Text: m[1]}, accessWrite)
		}
		if s.caps.Has(FilesystemDelete) {
			j.pathEffect(s, shell.Word{Text: m[1]}, accessDelete)
		}
	}
}

var vimCommand = lazy(`(?s)^\s*:?\s*(?:silent!?\s*)?(?:!|r(?:ead)?\s*!|w(?:rite)?\s*!|%!|system\(|call\s+system|` +
	`py(?:thon)?3?\b|pyx\b|lua\b|perl\b|ruby\b|tcl\b|source\b|so\b|term\b|terminal\b|exe(?:cute)?\b)\s*(.*)$`)

// vim judges a command for vim.
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
