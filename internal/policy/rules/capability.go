package rules

import (
	"iter"
	"math/bits"
)

// Capability is one kind of effect that a command can have. Decisions and rules name them.
type Capability uint8

// The capabilities, whose names are in Capabilities.
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
	// Harmless: unless a rule says otherwise, a command with no other capability is SAFE.
	Harmless bool
	// Destructive: no approval of it may be remembered.
	Destructive bool
}

// Capabilities is the table of capabilities, in order. docs/policy/capabilities.md says what
// each means.
var Capabilities = [capabilities]CapabilityInfo{
	NoCapability:          {Name: "none", Harmless: true},
	FilesystemRead:        {Name: "filesystem.read", Harmless: true},
	FilesystemWrite:       {Name: "filesystem.write"},
	FilesystemDelete:      {Name: "filesystem.delete", Destructive: true},
	FilesystemPermission:  {Name: "filesystem.permission"},
	FilesystemSystemWrite: {Name: "filesystem.system_write", Destructive: true},
	FilesystemMount:       {Name: "filesystem.mount"},
	FilesystemDestroy:     {Name: "filesystem.destroy", Destructive: true},
	BlockDeviceMutate:     {Name: "block_device.mutate", Destructive: true},
	CommandExecute:        {Name: "command.execute", Harmless: true},
	CodeExecute:           {Name: "code.execute"},
	NetworkQuery:          {Name: "network.query", Harmless: true},
	NetworkIn:             {Name: "network.in"},
	NetworkOut:            {Name: "network.out"},
	NetworkListen:         {Name: "network.listen"},
	NetworkConfigure:      {Name: "network.configure"},
	PrivilegeEscalate:     {Name: "privilege.escalate", Destructive: true},
	Persistence:           {Name: "persistence", Destructive: true},
	AccountMutate:         {Name: "account.mutate", Destructive: true},
	ServiceMutate:         {Name: "service.mutate"},
	PackageMutate:         {Name: "package.mutate"},
	KernelMutate:          {Name: "kernel.mutate"},
	ContainerMutate:       {Name: "container.mutate"},
	ClusterMutate:         {Name: "cluster.mutate"},
	CloudMutate:           {Name: "cloud.mutate"},
	DatabaseMutate:        {Name: "database.mutate"},
	GitMutate:             {Name: "git.mutate"},
	SecretRead:            {Name: "secret.read", Destructive: true},
	LogTamper:             {Name: "log.tamper", Destructive: true},
	CarrelTamper:          {Name: "carrel.tamper", Destructive: true},
	ProcessSignal:         {Name: "process.signal"},
	ProcessTrace:          {Name: "process.trace", Destructive: true},
	ProcessPriority:       {Name: "process.priority"},
	SystemPower:           {Name: "system.power", Destructive: true},
	SystemConfigure:       {Name: "system.configure"},
	EnvironmentPoison:     {Name: "environment.poison", Destructive: true},
	ResourceExhaust:       {Name: "resource.exhaust", Destructive: true},
	SecurityDisable:       {Name: "security.disable", Destructive: true},
	RemoteCodeExecute:     {Name: "remote_code.execute", Destructive: true},
	MessageSend:           {Name: "message.send"},
	TerminalInteractive:   {Name: "terminal.interactive"},
	ShellObfuscated:       {Name: "shell.obfuscated", Destructive: true},
	ShellDynamic:          {Name: "shell.dynamic"},
	ProgramUnknown:        {Name: "program.unknown"},
	InputInvalid:          {Name: "input.invalid", Destructive: true},
	ShellParse:            {Name: "shell.parse", Destructive: true},
	ShellEmpty:            {Name: "shell.empty", Destructive: true},
	LLMGenerated:          {Name: "llm.generated"},
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
