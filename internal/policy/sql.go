package policy

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/shell"
)

// sql judges statements.
func (j *judge) sql(s *segment, w shell.Word) {
	j.sqlReaches(s, w)
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

// sqlReaches adds what statements do beyond the database: files and programs of the
// server or the client, accounts, records.
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
		s.add(FilesystemRead, m[1])
		j.pathEffect(s, part(w, m[1]), accessRead)
	}
	for _, m := range sqlWriteFile.compiled().FindAllStringSubmatch(w.Text, 8) {
		j.write(s, part(w, m[1]+m[2]+m[3]))
	}
	if sqlAccounts.MatchString(w.Text) {
		s.add(AccountMutate, w.Text)
	}
	if sqlRecords.MatchString(w.Text) {
		s.add(LogTamper, w.Text)
	}
}

// sqlite judges the file of a database by what is done with what is in it.
func (j *judge) sqlite(s *segment, p *parsed, _ []shell.Word) {
	if s.caps.Has(DatabaseMutate) && len(p.operands) > 0 && !hasFlag(p, "-readonly") {
		j.pathEffect(s, p.operands[0], accessWrite)
	}
}

var (
	sqlRuns      = lazy(`(?im)(?:(?:^|[;"'])\s*(?:\\!|\.shell|\.system|system)\s+([^\n]+)|\bprogram\s+('[^']*')|xp_cmdshell\s+('[^']*')|\b(?:sys_exec|sys_eval)\s*\(\s*('[^']*'))`)
	sqlReadFile  = lazy(`(?i)\b(?:readfile|load_file|pg_read_file|pg_read_binary_file|read_text|read_blob|lo_import)\s*\(\s*['"]([^'"]+)['"]`)
	sqlWriteFile = lazy(`(?im)\bwritefile\s*\(\s*['"]([^'"]+)['"]|\binto\s+(?:outfile|dumpfile)\s+['"]([^'"]+)['"]|(?:^|[;])\s*\.(?:output|once|backup|save|clone|excel|dump)\s+['"]?([^\s'"]+)`)
	sqlAccounts  = lazy(`(?i)\b(?:create|alter|drop|rename)\s+(?:user|role|login|group)\b|\bset\s+password\b|\b(?:grant|revoke)\b.*\b(?:to|from)\b|\b(?:insert\s+into|update|delete\s+from)\s+mysql\.user\b`)
	sqlRecords   = lazy(`(?i)\bpurge\s+(?:binary|master)\s+logs\b|\breset\s+(?:master|binary)\b|\b(?:general_log|slow_query_log|sql_log_bin|sql_log_off|audit_log\w*|log_statement|logging_collector|log_connections|pgaudit\.\w+)\b\s*(?:=|to\b)`)
)

var (
	sqlReads    = lazy(`(?is)^\s*(?:(?:select|show|describe|desc|explain|with|values|table|pragma\s+[a-z_]+(?:\([^)]*\))?)\b[^;]*|\\(?:d[a-zA-Z+]*|l\+?|conninfo|du|dn|dt|x|timing)\b[^;\n]*|\.(?:tables|schema|databases|indexes|indices|headers|mode|dbinfo)\b[^;\n]*)?;?\s*$`)
	sqlWrites   = lazy(`(?is)\b(?:into\s+(?:outfile|dumpfile)|insert|update|delete|drop|alter|create|truncate|grant|revoke|copy|call|do|load|replace|vacuum|reindex|pg_terminate_backend|pg_cancel_backend|pg_reload_conf|pg_read_file|lo_import|lo_export|dblink|set_config|nextval|setval|load_extension|load_file|writefile|edit|xp_cmdshell|sleep|into)\b`)
	sqlPrograms = lazy(`(?is)\b(?:copy\b.*\bprogram\b|xp_cmdshell|sys_exec|sys_eval|lib_mysqludf)|^\s*(?:\\!|\.shell\b|\.system\b|system\s)|[\n;]\s*(?:\\!|\.shell|\.system)`)
)
