package rules

import "strings"

// weakening matches settings that turn a protection off, in text that is written or given to a
// program. The stem excludes most texts without a regular expression.
var weakening = []struct {
	stem    string // in lower case
	setting *lazyRegexp
}{
	{"permit", lazy(`(?i)\bPermit(?:RootLogin|EmptyPasswords|UserEnvironment)\W+(?:yes|without-password)\b`)},
	{"passwordauth", lazy(`(?i)\bPasswordAuthentication\W+yes\b`)},
	{"hostkeychecking", lazy(`(?i)\bStrictHostKeyChecking\W+(?:no|off|accept-new)\b`)},
	{"selinux", lazy(`(?i)\bSELINUX=(?:disabled|permissive|0)\b`)},
	{"apparmor", lazy(`(?i)\bapparmor=0\b`)},
	{"enforcing", lazy(`(?i)\benforcing=0\b`)},
	{"mitigations", lazy(`(?i)\bmitigations=off\b`)},
	{"nokaslr", lazy(`(?i)\bnokaslr\b`)},
	{"audit", lazy(`(?i)\baudit=0\b`)},
	{"lockdown", lazy(`(?i)\blockdown=none\b`)},
	{"gpgcheck", lazy(`(?i)\bgpgcheck\W*=\W*(?:0|false|no)\b`)},
	{"sslverify", lazy(`(?i)\bssl_?verify\W+(?:0|false|no|off)\b`)},
	{"strict-ssl", lazy(`(?i)\bstrict-ssl\W+false\b`)},
	{"tls", lazy(`(?i)\b(?:insecure_skip_(?:tls_)?verify|insecureSkipTLSVerify|skip_tls_verify)\W+(?:true|1|yes)\b`)},
	{"nopasswd", lazy(`\bNOPASSWD\b`)},
	{"trusted=yes", lazy(`(?i)\[[^\]]*trusted=yes`)},
	{"allowunauthenticated", lazy(`(?i)AllowUnauthenticated\W+(?:true|1|yes)\b`)},
	{"allusers", lazy(`\ball(?:AuthenticatedU|U)sers\b`)},
	{"blob-public", lazy(`(?i)\ballow-blob-public-access\W+true\b`)},
	{"public-", lazy(`(?i)\bacl\W+public-read(?:-write)?\b`)},
	{"0.0.0.0/0", lazy(`(?:authorize-security-group-ingress|firewall-rules\s+(?:create|update)|firewall\s+create|` +
		`security\s+group\s+rule\s+create|nsg\s+rule|add-ingress).*0\.0\.0\.0/0|0\.0\.0\.0/0.*(?:ingress|source)`)},
	{"pam_", lazy(`/pam_(?:tally2?|faillock|pwquality|cracklib|access|google_authenticator|duo|u2f)[\w.]*/d|^\W*sed\b.*#.*pam_`)},
	{"unconfined", lazy(`\b(?:seccomp|apparmor|label)[=:](?:unconfined|disable)\b`)},
}

// writesAnything are capabilities under which a setting takes effect.
var writesAnything = SetOf(FilesystemWrite, FilesystemSystemWrite, KernelMutate, PackageMutate, AccountMutate, SystemConfigure,
	CloudMutate, ClusterMutate, ContainerMutate, EnvironmentPoison, ProgramUnknown)

// weakens adds security.disable if a command turns a protection off.
func (j *judge) weakens(s *segment) {
	if s.caps&writesAnything == 0 || len(s.text) > 16<<10 {
		return
	}
	lower := strings.ToLower(s.text)
	for i := range weakening {
		w := &weakening[i]
		if strings.Contains(lower, w.stem) && w.setting.MatchString(s.text) {
			s.add(SecurityDisable, w.stem)
			return
		}
	}
}
