package rules

import (
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

var (
	sqlReads = lazy(`(?is)^\s*(?:(?:select|show|describe|desc|explain|with|values|table|exists|summarize|from|match)\b.*|` +
		`\(\s*select\b.*|(?:use|help|status|list|consistency)\b[\w\s.\x60"]*|(?:begin|start\s+transaction|commit|` +
		`rollback|end)(?:\s+(?:work|transaction|read\s+only|isolation\s+level|repeatable\s+read|serializable|` +
		`read\s+committed|[\s,])*)?|set\s+(?:session\s+|local\s+)?(?:transaction\s+read\s+only|statement_timeout|` +
		`lock_timeout|search_path|time\s*zone|timezone|names|enable_\w+|max_execution_time)\b[^()]*)?$`)
	sqlWrites = lazy(`(?is)\b(?:into\s+(?:outfile|dumpfile)|insert|update|delete|drop|alter|create|truncate|grant|revoke|copy|` +
		`call|do|load|replace|vacuum|reindex|pg_(?:terminate|cancel|reload|read|switch|promote|create|drop|` +
		`rotate|stat_reset|advisory|logical_emit|notify|backup|start_backup|stop_backup|sleep|log)\w*|` +
		`pg_file_(?:write|rename|unlink|sync)|lo_\w+|dblink\w*|query_to_\w+|set_config|nextval|setval|` +
		`load_extension|load_file|writefile|edit|xp_\w+|sp_\w+|openrowset|sleep|benchmark|get_lock|release_lock|` +
		`master_pos_wait|into)\b`)
	sqlPrograms = lazy(`(?is)\bexecutable\s*\(|\b(?:copy\b.*\bprogram\b|xp_cmdshell|sys_exec|sys_eval|lib_mysqludf)|^\s*(?:\\!|` +
		`\.shell\b|\.system\b|system\s)|[\n;]\s*(?:\\!|\.shell|\.system)`)
	sqlFiles = lazy(`(?is)\b(?:pg_shadow|pg_authid|authentication_string|passwd_hash|password_hash)\b|` +
		`\bmysql\.user\b.*\bpassword\b|(?:\*|\bpassword\b).*\bmysql\.user\b|\btable\s+mysql\.user\b`)
	sqlTables = lazy(`(?i)\b(?:url|s3|gcs|hdfs|remote|remoteSecure|iceberg|deltaLake|azureBlobStorage|mysql|postgresql|` +
		`mongodb|redis|jdbc|odbc)\s*\(\s*'`)
	sqlSaved = lazy(`(?is)^\s*(?:\\copy\b.*\bto\b|\.(?:backup|save|output|once|clone|archive)\b|copy\b.*\bto\s*['"])|` +
		`\binto\s+(?:outfile|dumpfile)\b|\bwritefile\s*\(`)
	sqlPrinted  = lazy(`(?is)^\s*\\?copy\b(.*)\bto\s+stdout\b[^;]*$`)
	sqlCreated  = lazy(`(?i)^\s*show\s+create\b`)
	sqlReplaced = lazy(`(?i)\breplace\s*\(`)
	// Settings of SQLite that are read, and those that are read with an argument.
	sqlPragma = lazy(`(?i)^\s*pragma\s+(?:\w+\.)?(?:(\w+)|(?:table_x?info|table_list|index_x?info|index_list|` +
		`foreign_key_(?:list|check)|integrity_check|quick_check)\s*\([^)]*\))\s*$`)
	sqlPragmaDoes = lazy(`(?i)^(?:optimize|wal_checkpoint|incremental_vacuum|shrink_memory)$`)
	// Commands of psql and of sqlite3 that only show.
	sqlMeta = lazy(`(?is)^\s*(?:\\(?:d[a-zA-Z+]*|l\+?|conninfo|x|z|a|t|h|timing|s[fv]\+?|encoding|pset|echo|` +
		`dconfig)(?:\s[^\n\x60]*)?|\.(?:tables|schema|fullschema|databases|indexes|indices|headers?|mode|dbinfo|` +
		`dump|show|stats|timer|width|nullvalue|separator|sha3sum|lint|print|version|eqp|explain|echo|help)\b[^\n|` +
		`]*)$`)
	sqlGraph  = lazy(`(?i)^\s*match\b`)
	sqlGraphs = lazy(`(?is)\b(?:merge|set|remove|detach|foreach|call|apoc)\b`)
)

// sql judges statements; each must be known to only read.
func (j *judge) sql(s *segment, w shell.Word) {
	j.sqlReaches(s, w)
	j.mention(s, w)
	if sqlTables.MatchString(w.Text) {
		s.add(NetworkOut, w.Text)
	}
	if sqlPrograms.MatchString(w.Text) || strings.HasPrefix(strings.TrimSpace(w.Text), `\`) && strings.Contains(w.Text, "`") {
		s.add(CodeExecute, w.Text)
		s.add(DatabaseMutate, w.Text)
		return
	}
	if w.Dynamic && strings.HasPrefix(strings.TrimSpace(w.Text), "$") {
		s.add(DatabaseMutate, w.Text)
	}
	for one := range strings.SplitSeq(withoutStrings(w.Text), ";") {
		one = strings.TrimSpace(one)
		for _, end := range [...]string{`\G`, `\g`, `\gx`, `\x`} {
			if !strings.HasPrefix(one, `\`) {
				one = strings.TrimSuffix(one, end)
			}
		}
		if !readsOnly(one) {
			s.add(DatabaseMutate, w.Text)
		}
		if sqlFiles.MatchString(one) {
			s.add(SecretRead, w.Text)
		}
		if sqlSaved.MatchString(one) && sqlPrinted.FindStringSubmatch(one) == nil {
			s.add(FilesystemWrite, w.Text)
		}
	}
}

// readsOnly reports whether a statement is known to change nothing.
func readsOnly(one string) bool {
	if m := sqlPragma.FindStringSubmatch(one); m != nil {
		return !sqlPragmaDoes.MatchString(m[1])
	}
	if sqlMeta.MatchString(one) {
		return true
	}
	if m := sqlPrinted.FindStringSubmatch(one); m != nil {
		return !sqlWrites.MatchString(m[1])
	}
	if sqlGraph.MatchString(one) && sqlGraphs.MatchString(one) {
		return false
	}
	one = sqlCreated.compiled().ReplaceAllString(one, "show ")
	one = sqlReplaced.compiled().ReplaceAllString(one, "(")
	return sqlReads.MatchString(one) && !sqlWrites.MatchString(one)
}

// withoutStrings empties the strings of statements where all databases agree on their end: no
// escapes, dollar quotes or comments.
func withoutStrings(t string) string {
	if !strings.Contains(t, "'") || strings.ContainsAny(strings.TrimSuffix(strings.TrimSpace(t), `\G`), `\$#`) ||
		strings.Contains(t, "--") || strings.Contains(t, "/*") {
		return t
	}
	var b strings.Builder
	for i := 0; i < len(t); i++ {
		c := t[i]
		b.WriteByte(c)
		if c != '\'' && c != '"' && c != '`' {
			continue
		}
		end := strings.IndexByte(t[i+1:], c)
		if end < 0 {
			return t
		}
		if c != '\'' {
			b.WriteString(t[i+1 : i+1+end])
		}
		b.WriteByte(c)
		i += end + 1
	}
	return b.String()
}

// mongoReads are functions of MongoDB's shell that change nothing.
var mongoReads = func() map[string]bool {
	m := map[string]bool{}
	for name := range strings.FieldsSeq(`
		print printjson printjsononeline tojson stringify parse ObjectId ISODate Date NumberLong NumberInt NumberDecimal UUID Timestamp
		find findOne count countDocuments estimatedDocumentCount distinct aggregate stats getIndexes explain dataSize storageSize totalSize
		totalIndexSize latencyStats indexStats isCapped getShardDistribution getShardVersion getName getFullName exists
		limit sort skip pretty toArray projection project hint maxTimeMS batchSize itcount size readPref readConcern collation next hasNext
		getSiblingDB getCollection getMongo getDB getCollectionNames getCollectionInfos getName hostInfo currentOp getUsers
		getRoles serverBuildInfo
		serverStatus serverCmdLineOpts isMaster hello version listCommands getProfilingStatus getProfilingLevel getReplicationInfo
		printReplicationInfo printSecondaryReplicationInfo printSlaveReplicationInfo printShardingStatus printCollectionStats
		status conf config isWriter adminCommand runCommand getDBNames getDBs getReadPref listDatabases
		length keys values entries slice join toString toFixed round indexOf includes`) {
		m[name] = true
	}
	return m
}()

var (
	mongoShow     = lazy(`^\s*(?:show|use)\s+\w+\s*$`)
	mongoCall     = lazy(`([A-Za-z_]\w*)\s*\(`)
	mongoCommand  = lazy(`(?:adminCommand|runCommand)\s*\(\s*(?:\{\s*)?['"]?(\w*)`)
	mongoCommands = set(`
		ping listDatabases serverStatus buildInfo hostInfo replSetGetStatus replSetGetConfig dbStats collStats
		listCollections listIndexes getCmdLineOpts getParameter isMaster hello currentOp connectionStatus getLog top
		usersInfo rolesInfo count distinct explain balancerStatus listShards getShardMap connPoolStats features`)
	mongoDoes = lazy(`\$(?:out|merge|where|function|accumulator)\b|\b(?:function|new\s+Mongo|eval|require|process|load|import|` +
		`while|for)\b|=>|[^=!<>]=[^=>]|\+\+|--|\[\s*[^\]\d'"{-]`)
)

// mongo judges code for MongoDB's shell; every call must be known to only read.
func (j *judge) mongo(s *segment, w shell.Word) {
	if strings.Contains(w.Text, "system.users") {
		s.add(SecretRead, w.Text)
	}
	if mongoAccounts.MatchString(w.Text) {
		s.add(AccountMutate, w.Text)
	}
	if mongoShow.MatchString(w.Text) {
		return
	}
	reads := !w.Dynamic && !strings.ContainsAny(w.Text, "`\\") && !mongoDoes.MatchString(w.Text)
	for _, call := range mongoCall.compiled().FindAllStringSubmatch(w.Text, 64) {
		reads = reads && mongoReads[call[1]]
	}
	commands := mongoCommand.compiled().FindAllStringSubmatch(w.Text, 64)
	reads = reads && !slices.ContainsFunc(commands, func(c []string) bool { return !mongoCommands[c[1]] })
	if !reads || !strings.Contains(w.Text, "db.") && !strings.Contains(w.Text, "rs.") && !strings.Contains(w.Text, "sh.") {
		s.add(DatabaseMutate, w.Text)
		s.add(CodeExecute, w.Text)
	}
}

var mongoAccounts = lazy(`\b(?:create|drop|update|grant\w+To|revoke\w+From)(?:All)?(?:User|Role)s?\w*\s*\(|changeUserPassword`)
