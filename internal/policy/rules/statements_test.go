package rules_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// TestStatements holds that queries are told from changes, also where one has the words of the
// other.
func TestStatements(t *testing.T) {
	e := engine(t)
	for command, safe := range map[string]bool{
		`psql -c "select 'drop table t; delete'"`:                           true,
		`psql -c "select replace(a, 'x', 'y') from t"`:                      true,
		`psql -c 'begin read only; select 1; commit'`:                       true,
		`mysql -e 'use app; show create table t\G'`:                         true,
		`sqlite3 a.db 'pragma table_info(t)'`:                               true,
		`psql -c "copy (select 1) to stdout"`:                               true,
		`sqlite3 a.db 'pragma user_version=3'`:                              false,
		`sqlite3 a.db 'pragma wal_checkpoint'`:                              false,
		`psql -c "select 1; drop table t"`:                                  false,
		`mysql -e "select \"it's\"; drop table t; select '"`:                false,
		`psql -c 'select $a$it'"'"'s$a$; drop table t; select $a$'"'"'$a$'`: false,
		`psql -c "select 1 --it's` + "\n" + `; drop table t; --'"`:          false,
		`psql -c "select pg_sleep(100)"`:                                    false,
		`psql -c '\dt ` + "`id`" + `'`:                                      false,
		`psql -c "copy t to '/tmp/x'"`:                                      false,
		`mongosh --eval 'db.t.aggregate([{$group:{_id:"$a",n:{$sum:1}}}])'`: true,
		`mongosh --eval 'db.t.find({a:{$gt:1}}).limit(5).toArray().length'`: true,
		`mongosh --eval 'db.t.aggregate([{$out:"b"}])'`:                     false,
		`mongosh --eval 'db.t.find(); db.t.drop()'`:                         false,
		`mongosh --eval 'db.adminCommand({shutdown:1})'`:                    false,
		`mongosh --eval 'db["t"].stats(); x = db.t; x["dr"+"op"]()'`:        false,
		`kubectl delete pod x --dry-run=client`:                             true,
		`kubectl delete pod client --dry-run=none`:                          false,
		`kubectl delete pod x --dry-run=client --dry-run=none`:              false,
		`docker build --check .`:                                            true,
		`docker build --check=false .`:                                      false,
		`docker run --help`:                                                 true,
		`docker exec web --help`:                                            false,
		`kubectl delete --help`:                                             true,
		`taskset 1 find / -delete`:                                          false,
		`taskset -p 1`:                                                      true,
		`taskset -p 1 99`:                                                   false,
		`PATH=/usr/bin:/bin ls`:                                             true,
		`PATH=/usr/bin:/tmp ls`:                                             false,
		`cat /var/log/syslog*`:                                              true,
		`cat /var/log/../../etc/ssl/private/s*`:                             false,
		`cat /var/l*/s*`:                                                    false,
	} {
		d := e.Decide(rules.Question{Command: command, Profile: rules.Host, Source: rules.User})
		if (d.Level == rules.Safe) != safe {
			t.Errorf("%q is %s: %v", command, d.Level, d.Reasons)
		}
	}
}
