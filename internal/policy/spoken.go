package policy

import (
	"strings"
	"sync"
)

// What the words of a command say that it does, where the knowledge does not have it:
// "delete cluster prod" changes a cluster whatever the program is. It only names what is
// asked about anyway.

// verb is a kind of word that says what is done.
type verb uint8

const (
	noVerb     verb = iota
	verbShow        // what is shown may be a secret
	verbChange      // makes it another
	verbRemove      // takes it away
	verbTell        // has people read it
)

// vocabulary is what words mean.
type vocabulary struct {
	verbs map[string]verb
	alone map[string]Set // what a verb is, whatever it is done to
	about map[string]Set // what something is done to, without the s of many
}

var spokenWords = sync.OnceValue(func() *vocabulary {
	v := &vocabulary{verbs: map[string]verb{}, alone: map[string]Set{}, about: map[string]Set{}}
	for _, row := range [...]struct {
		is    verb
		words string
	}{
		{verbShow, `get show read print view reveal decrypt export dump cat fetch describe display unseal`},
		{verbChange, `create new add update set put apply edit modify patch replace rename move start stop restart reboot reset scale resize attach detach
			enable disable grant revoke rotate restore rollback promote suspend resume assign unassign bind unbind join leave drain import migrate deploy
			provision run launch change register unregister lock unlock upgrade increase decrease rebuild approve merge close reopen exec invoke trigger
			cancel retry failover rebalance alter configure insert`},
		{verbRemove, `delete del remove rm destroy drop purge wipe prune clean cleanup empty flush truncate erase terminate unset`},
		{verbTell, `send post publish notify announce reply comment note message mail tell`},
	} {
		for w := range strings.FieldsSeq(row.words) {
			v.verbs[w] = row.is
		}
	}
	for _, row := range [...]struct {
		is           Capability
		alone, about string
	}{
		{FilesystemDelete, `delete del remove rm destroy purge wipe prune clean cleanup empty truncate erase`, ``},
		{FilesystemMount, `mount umount unmount`, ``},
		{BlockDeviceMutate, ``, `disk partition raid lv vg array`},
		{CodeExecute, `exec`, ``},
		{NetworkOut, `send post publish upload push submit share announce release`, ``},
		{NetworkListen, `listen serve server proxy expose tunnel`, ``},
		{NetworkConfigure, ``, `rule route interface address vlan bridge firewall`},
		{Persistence, ``, `cron schedule timer autostart`},
		{AccountMutate, ``, `user account group member role permission policy acl`},
		{ServiceMutate, `start stop restart reload enable disable`, `service daemon unit`},
		{PackageMutate, `install uninstall upgrade reinstall`, `package plugin extension addon repo repository`},
		{ContainerMutate, ``, `container image vm guest machine box`},
		{ClusterMutate, ``, `cluster node pod namespace nodepool workload daemonset statefulset`},
		{CloudMutate, ``, `instance server droplet bucket lb loadbalancer zone record dns vpc subnet function lambda app site project env environment stack pipeline org
			region release deployment workflow`},
		{DatabaseMutate, ``, `db database table topic collection schema keyspace migration queue replica`},
		{GitMutate, ``, `branch tag commit ref`},
		{SecretRead, ``, `secret token password passwd credential key apikey keypair passphrase kubeconfig`},
		{LogTamper, ``, `log audit`},
		{ProcessSignal, `kill killproc terminate`, `process job`},
		{ProcessTrace, `trace snoop inject`, ``},
		{SystemPower, `reboot shutdown poweroff halt`, ``},
		{MessageSend, `notify message mail tell reply comment`, `issue comment note message mail email sms alert incident thread reply review notification ticket bug`},
	} {
		for w := range strings.FieldsSeq(row.alone) {
			v.alone[w] |= SetOf(row.is)
		}
		for w := range strings.FieldsSeq(row.about) {
			v.about[w] |= SetOf(row.is)
		}
	}
	return v
})

// spoken adds what words say. Of a program that is known only that is taken which its table
// may have left out: secrets that are shown, messages that are sent.
func (j *judge) spoken(s *segment, known bool) {
	v := spokenWords()
	var is verb
	var alone, about Set
	first := true
	hear := func(word string) {
		alone |= v.alone[word]
		if first {
			return // a program's name says what it is for, and not what it is to do
		}
		if k := v.verbs[word]; is == noVerb {
			is = k
		}
		about |= v.about[strings.TrimSuffix(word, "s")]
	}
	heard := 0
	for i := range s.words {
		w := &s.words[i]
		text := w.Text
		first = i == 0
		if i == 0 && s.spec != nil || w.Dynamic || len(text) > 40 || strings.ContainsAny(text, "/=@. ") {
			continue
		}
		if strings.HasPrefix(text, "-") {
			if d := deedOf(text); !known && d.does {
				s.addSet(d.caps, text)
			}
			continue
		}
		if heard++; heard > 4 {
			break
		}
		text = strings.ToLower(text)
		hear(text)
		if strings.ContainsAny(text, "-:_") {
			for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '-' || r == ':' || r == '_' }) {
				hear(part)
			}
		}
	}
	secret, tell := about&SetOf(SecretRead), about&SetOf(MessageSend)
	about &^= secret | tell
	switch is {
	case noVerb:
		about, tell = 0, 0
	case verbShow:
		s.addSet(secret, s.text)
		about, tell = 0, 0
	case verbTell:
		s.addSet(tell, s.text)
		about = 0
	case verbChange:
		s.addSet(tell, s.text)
		about &^= SetOf(LogTamper)
		if !known {
			s.addSet(secret, s.text)
		}
	case verbRemove:
		about &^= SetOf(Persistence)
	}
	if known {
		return
	}
	if about == 0 && tell == 0 {
		about = alone
	}
	s.addSet(about, s.text)
}

// mayBeSpoken are capabilities of programs whose tables say what they change and not all
// that they show and send.
var mayBeSpoken = SetOf(CloudMutate, ClusterMutate, DatabaseMutate, AccountMutate)
