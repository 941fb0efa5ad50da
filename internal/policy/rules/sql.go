package rules

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// sqlReaches adds effects of statements outside the database: files, programs, accounts and logs.
func (j *judge) sqlReaches(s *segment, w shell.Word) {
	if strings.Trim(w.Text, "; \n") == "" {
		return
	}
	for _, m := range sqlRuns.compiled().FindAllStringSubmatch(w.Text, 8) {
		if text := m[1] + m[2] + m[3] + m[4]; text != "" {
			j.shellText(s, part(w, strings.Trim(text, `'"`)))
		}
	}
	for _, m := range sqlReadFile.compiled().FindAllStringSubmatch(w.Text, 8) {
		j.pathEffect(s, part(w, m[1]+m[2]), accessRead)
	}
	for _, m := range sqlWriteFile.compiled().FindAllStringSubmatch(w.Text, 8) {
		j.write(s, part(w, m[1]+m[2]+m[3]))
	}
	if sqlAccounts.MatchString(w.Text) {
		s.add(AccountMutate, w.Text)
	}
	if sqlProtections.MatchString(w.Text) {
		s.add(SecurityDisable, w.Text)
	}
	if sqlRecords.MatchString(w.Text) {
		s.add(LogTamper, w.Text)
	}
}

// sqlite judges the database file by what is done to its content.
func (j *judge) sqlite(s *segment, p *parsed, _ []shell.Word) {
	if s.caps.Has(DatabaseMutate) && len(p.operands) > 0 && !hasFlag(p, "-readonly") {
		j.pathEffect(s, p.operands[0], accessWrite)
	}
}

var (
	sqlRuns = lazy(`(?im)(?:(?:^|[;"'])\s*(?:\\!|\.shell|\.system|system)\s+([^\n]+)|\bprogram\s+('[^']*')|` +
		`xp_cmdshell\s+('[^']*')|\b(?:sys_exec|sys_eval)\s*\(\s*('[^']*'))`)
	sqlReadFile = lazy(`(?i)\b(?:readfile|load_file|pg_read_file|pg_read_binary_file|read_text|read_blob|` +
		`lo_import)\s*\(\s*['"]([^'"]+)['"]|(?:^|[;\n])\s*\.(?:read|import|open)\s+(?:--?\w+\s+)*['"]?([^\s'"]+)`)
	sqlWriteFile = lazy(`(?im)\bwritefile\s*\(\s*['"]([^'"]+)['"]|\binto\s+(?:outfile|dumpfile)\s+['"]([^'"]+)['"]|(?:^|` +
		`[;])\s*\.(?:output|once|backup|save|clone|excel|dump)\s+['"]?([^\s'"]+)`)
	sqlAccounts = lazy(`(?i)\b(?:create|alter|drop|rename)\s+(?:user|role|login|group)\b|\bset\s+password\b|\b(?:grant|` +
		`revoke)\b.*\b(?:to|from)\b|\b(?:insert\s+into|update|delete\s+from)\s+mysql\.user\b`)
	sqlProtections = lazy(`(?i)\b(?:ssl|password_encryption|row_security|require_secure_transport|validate_password\w*)\s*(?:=|` +
		`to)\s*'?(?:off|0|false)\b|disable\s+row\s+level\s+security|skip_grant_tables`)
	sqlRecords = lazy(`(?i)\bpurge\s+(?:binary|master)\s+logs\b|\breset\s+(?:master|binary)\b|\b(?:general_log|slow_query_log|` +
		`sql_log_bin|sql_log_off|audit_log\w*|log_statement|logging_collector|log_connections|` +
		`pgaudit\.\w+)\b\s*(?:=|to\b)`)
)
