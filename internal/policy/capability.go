package policy

import (
	"iter"
	"math/bits"
)

// Capability is one kind of effect that a command can have. A decision names those it
// found; rules speak of them by name.
type Capability uint8

// The capabilities. Names, meanings and what they are judged by are in Capabilities.
const (
	NoCapability Capability = iota
	FilesystemRead
	FilesystemWrite
	FilesystemDelete
	FilesystemPermission
	FilesystemSystemWrite
	FilesystemMount
	FilesystemDestroy
	BlockDeviceMutate
	CommandExecute
	CodeExecute
	NetworkQuery
	NetworkIn
	NetworkOut
	NetworkListen
	NetworkConfigure
	PrivilegeEscalate
	Persistence
	AccountMutate
	ServiceMutate
	PackageMutate
	KernelMutate
	ContainerMutate
	ClusterMutate
	CloudMutate
	DatabaseMutate
	GitMutate
	SecretRead
	LogTamper
	CarrelTamper
	ProcessSignal
	ProcessTrace
	ProcessPriority
	SystemPower
	SystemConfigure
	EnvironmentPoison
	ResourceExhaust
	SecurityDisable
	RemoteCodeExecute
	MessageSend
	TerminalInteractive
	ShellObfuscated
	ShellDynamic
	ProgramUnknown
	InputInvalid
	ShellParse
	ShellEmpty
	LLMGenerated
	capabilities // their number
)

// CapabilityInfo is a row of the table of capabilities.
type CapabilityInfo struct {
	Name string
	// Doc says what has it, for a person.
	Doc string
	// Harmless says that it alone asks for nothing: without a rule that says otherwise a
	// command with no other capability is SAFE.
	Harmless bool
	// Destructive says that no approval of it may be remembered.
	Destructive bool
}

// Capabilities is the table of capabilities, in order; docs/policy/capabilities.md is
// written from it.
var Capabilities = [capabilities]CapabilityInfo{
	NoCapability:          {Name: "none", Doc: "has no effect beyond its output", Harmless: true},
	FilesystemRead:        {Name: "filesystem.read", Doc: "reads files or lists directories: cat, ls, find without actions", Harmless: true},
	FilesystemWrite:       {Name: "filesystem.write", Doc: "creates, overwrites, appends to, copies onto, moves, links or edits files: tee, cp, mv, sed -i, a redirect to a file"},
	FilesystemDelete:      {Name: "filesystem.delete", Doc: "removes or empties files or directories: rm, find -delete, git clean, truncate, shred, rsync --delete", Destructive: true},
	FilesystemPermission:  {Name: "filesystem.permission", Doc: "changes mode, owner, ACL, attributes or capabilities of files: chmod, chown, setfacl, chattr, setcap"},
	FilesystemSystemWrite: {Name: "filesystem.system_write", Doc: "writes, moves or deletes below the system's directories: /etc, /usr, /bin, /lib, /boot, /sys, /proc, /var/lib", Destructive: true},
	FilesystemMount:       {Name: "filesystem.mount", Doc: "mounts, unmounts, swaps on, sets up loop devices, exports file systems"},
	FilesystemDestroy:     {Name: "filesystem.destroy", Doc: "deletes or changes the whole of /, a home or a system's directory: rm -rf /, chmod -R 777 /etc, find / -delete", Destructive: true},
	BlockDeviceMutate:     {Name: "block_device.mutate", Doc: "writes to disks, partitions, RAID, LVM, LUKS, file system structures: mkfs, dd of=/dev/sda, fdisk, wipefs, lvremove", Destructive: true},
	CommandExecute:        {Name: "command.execute", Doc: "runs another command: xargs, find -exec, env, timeout, ssh host CMD, git with an alias; what it runs is judged too", Harmless: true},
	CodeExecute:           {Name: "code.execute", Doc: "runs code in some language or a file of it: python -c, perl -e, awk system(), vim -c, a script, a build"},
	NetworkQuery:          {Name: "network.query", Doc: "asks the network how it is, or this machine's own services, and sends nothing else: ping, dig, traceroute, nc -z, curl of localhost", Harmless: true},
	NetworkIn:             {Name: "network.in", Doc: "fetches from another host: curl URL, wget, git clone, scp host:file ., docker pull, pip install"},
	NetworkOut:            {Name: "network.out", Doc: "sends to another host or opens a connection that can: curl -d, scp file host:, ssh, nc host port, rsync to a host, git push, /dev/tcp"},
	NetworkListen:         {Name: "network.listen", Doc: "waits for connections: nc -l, python -m http.server, ssh -R, socat LISTEN"},
	NetworkConfigure:      {Name: "network.configure", Doc: "changes interfaces, routes, names, firewall, traffic rules or captures packets: ip addr add, iptables -A, nft, ufw, tcpdump"},
	PrivilegeEscalate:     {Name: "privilege.escalate", Doc: "acts as another user or with more rights: sudo, su, doas, pkexec, a setuid bit, setcap, sudoers, nsenter, a privileged container", Destructive: true},
	Persistence:           {Name: "persistence", Doc: "has something run later or at each start: cron, at, units and timers, rc files, authorized_keys, git hooks, ld.so.preload, udev rules, autostart", Destructive: true},
	AccountMutate:         {Name: "account.mutate", Doc: "changes users, groups, passwords, login shells or their files: useradd, passwd, usermod, chage, visudo", Destructive: true},
	ServiceMutate:         {Name: "service.mutate", Doc: "starts, stops, enables, disables, masks or reloads services: systemctl restart, service x stop, supervisorctl"},
	PackageMutate:         {Name: "package.mutate", Doc: "installs, removes or upgrades software: apt, dpkg -i, pip, npm -g, gem, snap, go install, adding repositories or keys"},
	KernelMutate:          {Name: "kernel.mutate", Doc: "changes the kernel or how it boots: modprobe, sysctl -w, /proc/sys, /sys, bpf, kexec, grub, dmesg -C"},
	ContainerMutate:       {Name: "container.mutate", Doc: "starts, stops, builds, removes or changes containers, images, volumes and virtual machines: docker run, podman rm, virsh destroy"},
	ClusterMutate:         {Name: "cluster.mutate", Doc: "changes a cluster or runs in it: kubectl apply, delete, exec, drain, helm install"},
	CloudMutate:           {Name: "cloud.mutate", Doc: "changes what runs at a provider, or spends: aws ec2 run-instances, gcloud … create, terraform apply, gh release create"},
	DatabaseMutate:        {Name: "database.mutate", Doc: "changes a database or its schema, or runs statements that may: psql -c 'DROP …', mysql < dump, redis-cli FLUSHALL, dropdb"},
	GitMutate:             {Name: "git.mutate", Doc: "rewrites or throws away history or work of a repository: git reset --hard, rebase, push --force, branch -D, clean -f, checkout of files"},
	SecretRead:            {Name: "secret.read", Doc: "reads keys, passwords or tokens: /etc/shadow, ~/.ssh/id_*, *.pem, kubeconfig, cloud credentials, /proc/*/environ, kubectl get secret, history", Destructive: true},
	LogTamper:             {Name: "log.tamper", Doc: "changes or hides records: rm or truncate below /var/log, journalctl --vacuum, history -c, unset HISTFILE, auditctl -D, touch -r", Destructive: true},
	CarrelTamper:          {Name: "carrel.tamper", Doc: "changes carrel's own files, users, processes or services, or answers its approvals", Destructive: true},
	ProcessSignal:         {Name: "process.signal", Doc: "ends or signals processes: kill, pkill, killall, fuser -k, xkill"},
	ProcessTrace:          {Name: "process.trace", Doc: "looks into or changes other processes: gdb -p, strace -p, ltrace, gcore, perf, /proc/PID/mem", Destructive: true},
	ProcessPriority:       {Name: "process.priority", Doc: "changes priority, affinity or limits of running processes: renice, ionice -p, taskset -p, prlimit --pid"},
	SystemPower:           {Name: "system.power", Doc: "halts, restarts, suspends the machine or changes its runlevel: shutdown, reboot, init 0, systemctl poweroff, sysrq", Destructive: true},
	SystemConfigure:       {Name: "system.configure", Doc: "changes the machine's name, clock, locale, limits, alternatives or settings of its desktop: hostnamectl set-hostname, timedatectl set-time, update-alternatives"},
	EnvironmentPoison:     {Name: "environment.poison", Doc: "sets variables that make other programs run something: LD_PRELOAD, PATH, BASH_ENV, IFS, GIT_SSH_COMMAND, PYTHONPATH, PROMPT_COMMAND, an alias or function in the name of a program", Destructive: true},
	ResourceExhaust:       {Name: "resource.exhaust", Doc: "uses up the machine: fork bombs, endless output to files, stress, dd of zeros, fallocate of the whole disk", Destructive: true},
	SecurityDisable:       {Name: "security.disable", Doc: "turns a protection off: setenforce 0, ufw disable, systemctl stop auditd, aa-disable, iptables -F, ASLR, certificate checks", Destructive: true},
	RemoteCodeExecute:     {Name: "remote_code.execute", Doc: "runs what came from the network or was decoded from text: curl … | sh, base64 -d | bash, bash <(curl …), eval of it", Destructive: true},
	MessageSend:           {Name: "message.send", Doc: "sends mail or messages to people: mail, sendmail, wall, write, gh issue create"},
	TerminalInteractive:   {Name: "terminal.interactive", Doc: "waits for a person: an editor, pager, shell or client without a command"},
	ShellObfuscated:       {Name: "shell.obfuscated", Doc: "is written so as to hide what it is: quoted or escaped letters, $'…' codes, look-alike characters, printf -v, text put together from parts", Destructive: true},
	ShellDynamic:          {Name: "shell.dynamic", Doc: "runs a program, or a text, that is not known before it runs: $CMD, a glob, eval of a variable"},
	ProgramUnknown:        {Name: "program.unknown", Doc: "runs a program, a subcommand or a form of one that the command knowledge does not have"},
	InputInvalid:          {Name: "input.invalid", Doc: "is not text that a person can read: NUL, control or direction characters, too long, too deep, too many", Destructive: true},
	ShellParse:            {Name: "shell.parse", Doc: "is not a shell text that can be read whole", Destructive: true},
	ShellEmpty:            {Name: "shell.empty", Doc: "has no command", Destructive: true},
	LLMGenerated:          {Name: "llm.generated", Doc: "was written by a model and is run for the first time"},
}

// String returns the name.
func (c Capability) String() string {
	if c >= capabilities {
		return "none"
	}
	return Capabilities[c].Name
}

var capabilityByName = func() map[string]Capability {
	m := make(map[string]Capability, capabilities)
	for c := range Capabilities {
		m[Capabilities[c].Name] = Capability(c)
	}
	return m
}()

// CapabilityByName returns the capability of a name, false if there is none.
func CapabilityByName(name string) (Capability, bool) {
	c, ok := capabilityByName[name]
	return c, ok && c != NoCapability
}

// Set is a set of capabilities.
type Set uint64

// SetOf returns the set of cs.
func SetOf(cs ...Capability) Set {
	var s Set
	for _, c := range cs {
		s |= 1 << c
	}
	return s &^ 1
}

// Has reports whether c is in s.
func (s Set) Has(c Capability) bool { return s&(1<<c) != 0 }

// All returns the capabilities of s in the table's order.
func (s Set) All() iter.Seq[Capability] {
	return func(yield func(Capability) bool) {
		for s != 0 {
			c := Capability(bits.TrailingZeros64(uint64(s)))
			if !yield(c) {
				return
			}
			s &^= 1 << c
		}
	}
}

// Names returns the names of s in the table's order.
func (s Set) Names() []string {
	if s == 0 {
		return nil
	}
	names := make([]string, 0, bits.OnesCount64(uint64(s)))
	for c := range s.All() {
		names = append(names, c.String())
	}
	return names
}
