package rules

import (
	"strings"
	"sync"
)

// meaning is what a word says that a program does where the knowledge has no answer: as an
// operand ("delete cluster"), as its object ("cluster") and as an option ("--delete").
type meaning struct {
	verb  verb
	alone Set // of a verb, whatever its object
	about Set // of an object, without a plural s
	option
}

// verb is what a word does to its object.
type verb uint8

const (
	noVerb     verb = iota
	verbShow        // what is shown may be a secret
	verbChange      // changes it or makes a new one
	verbRemove      // removes it
	verbTell        // sends it to people
)

// option is what an option does by its name.
type option struct {
	caps Set
	does bool // it does more than look, so a program known to only look is not known to do it
	runs bool // its value is a command
	file outputFile
}

// outputFile says when the value of an option is a file that is written.
type outputFile uint8

const (
	noOutput       outputFile = iota
	attachedOutput            // a path behind "=": the name alone is a format or a subject
	pathOutput                // a path: the name may stand for a format as well
	namedOutput               // any value
)

// vocabulary has the words that commands and options are named by.
var vocabulary = sync.OnceValue(func() map[string]meaning {
	v := map[string]meaning{}
	each := func(words string, f func(m *meaning)) {
		for w := range strings.FieldsSeq(words) {
			m := v[w]
			f(&m)
			v[w] = m
		}
	}
	for _, row := range [...]struct {
		is    verb
		words string
	}{
		{verbShow, `get show read print view reveal decrypt export dump cat fetch describe display unseal`},
		{verbChange, `create new add update set put apply edit modify patch replace rename move start stop restart reboot reset scale
			resize attach detach enable disable grant revoke rotate restore rollback promote suspend resume assign unassign bind
			unbind join leave drain import migrate deploy provision run launch change register unregister lock unlock upgrade
			increase decrease rebuild approve merge close reopen exec invoke trigger cancel retry failover rebalance alter
			configure insert format load connect`},
		{verbRemove, `delete del remove rm destroy drop purge wipe prune clean cleanup empty flush truncate erase terminate unset`},
		{verbTell, `send post publish notify announce reply comment note message mail tell`},
	} {
		each(row.words, func(m *meaning) { m.verb = row.is })
	}
	for _, row := range [...]struct {
		is                           Capability
		both, operand, option, about string
	}{
		{
			is: FilesystemDelete, both: `delete remove purge wipe prune truncate erase`, operand: `del rm destroy clean cleanup empty`,
			option: `drop`,
		},
		{is: FilesystemWrite, option: `write update add fix autofix autocorrect in-place inplace overwrite rewrite alter create save
			edit modify change rename move import init repair rebuild`},
		{is: FilesystemMount, both: `mount umount unmount`},
		{is: BlockDeviceMutate, about: `disk partition raid lv vg array`},
		{is: CodeExecute, operand: `exec`, option: `script plugin bootstrap autoload`},
		{is: NetworkOut, both: `publish upload push submit`, operand: `send post share announce release`, option: `webhook`},
		{is: NetworkListen, both: `listen serve`, operand: `server proxy expose tunnel`},
		{is: NetworkConfigure, about: `rule route interface address vlan bridge firewall`},
		{is: Persistence, about: `cron schedule timer autostart`},
		{is: AccountMutate, option: `grant revoke`, about: `user account group member role permission policy acl`},
		{
			is: ServiceMutate, both: `restart reload`, operand: `start stop enable disable`, option: `daemon daemonize`,
			about: `service daemon unit`,
		},
		{is: PackageMutate, both: `install uninstall upgrade`, operand: `reinstall`, about: `package plugin extension addon repo repository`},
		{is: ContainerMutate, about: `container image vm guest machine box`},
		{is: ClusterMutate, about: `cluster node pod namespace nodepool workload daemonset statefulset`},
		{is: CloudMutate, about: `instance server droplet bucket lb loadbalancer zone record dns vpc subnet function lambda app site
			project env environment stack pipeline org region release deployment workflow`},
		{is: DatabaseMutate, about: `db database table topic collection schema keyspace migration queue replica`},
		{is: GitMutate, about: `branch tag commit ref`},
		{is: SecretRead, about: `secret token password passwd credential key apikey keypair passphrase kubeconfig`},
		{is: LogTamper, about: `log audit`},
		{is: ProcessSignal, both: `kill`, operand: `killproc terminate`, about: `process job`},
		{is: ProcessTrace, operand: `trace snoop inject`},
		{is: SystemPower, both: `shutdown reboot`, operand: `poweroff halt`},
		{
			is: MessageSend, operand: `notify message mail tell reply comment`,
			about: `issue comment note message mail email sms alert incident thread reply review notification ticket bug`,
		},
		{is: NoCapability, option: `set clear reset flush enable disable unload apply propupd unlock lock attach detach rotate logout
			unregister restore`},
	} {
		caps := SetOf(row.is)
		each(row.both+" "+row.operand, func(m *meaning) { m.alone |= caps })
		each(row.both+" "+row.option, func(m *meaning) { m.option = option{caps: caps, does: true} })
		each(row.about, func(m *meaning) { m.about |= caps })
	}
	for _, row := range [...]struct {
		option
		words string
	}{
		{option{caps: SetOf(CodeExecute), does: true, runs: true}, `exec command run shell preprocessor hook rsh`},
		{option{file: namedOutput}, `outfile outdir logfile jsonfile csvfile htmlfile xmlfile reportfile`},
		{option{file: pathOutput}, `o out output log`},
		{option{file: attachedOutput}, `xml html json csv sarif junit junitxml pdf svg dot graph image report reports export dump record`},
	} {
		each(row.words, func(m *meaning) { m.option = row.option })
	}
	return v
})

// changes reports whether a word says that something changes.
func changes(word string) bool {
	m := vocabulary()[word]
	return m.verb > verbShow || m.does && !m.runs
}
