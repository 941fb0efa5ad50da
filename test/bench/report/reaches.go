package report

import "fmt"

// Measure is what of a row a reach is about.
type Measure int

// The measures.
const (
	Ratio Measure = iota
	P50
	P99
	// More is how much higher the median is than the peer's.
	More
)

// Reach is what a figure is to come to.
type Reach struct {
	ID string
	// Peer is whom Ratio and More are to.
	Peer string
	Of   Measure
	// Least: the value must not be lower, else it must not be higher.
	Least bool
	Limit float64
}

// The peers by the names that rows give them.
const (
	Fork      = "os/exec"
	Floor     = "the same steps, bare"
	Bwrap     = "bwrap --unshare-all"
	Crun      = "crun exec"
	Runc      = "runc exec"
	Cat       = "| cat"
	CrunRun   = "crun run -d"
	RuncRun   = "runc run -d"
	OneSync   = "fdatasync each"
	OneSHA    = "sha256, one thread"
	Builtin   = "built-in rules alone"
	Echo      = "socket echo"
	Allowance = "allowance"
	GoSDK     = "Go SDK"
	Tmux      = "tmux"
	Cp        = "cp"
	TarTar    = "tar | tar"

	Srt    = "srt"
	Direct = "directly"
	// Tinyproxy is a proxy for HTTP, in C.
	Tinyproxy = "tinyproxy"
	// Squid is one in C++, Smokescreen one in Go that judges addresses.
	Squid       = "squid"
	Smokescreen = "smokescreen"
	// Mitmproxy intercepts TLS, in Python.
	Mitmproxy = "mitmproxy"
	// SrtProxy is what srt gives to the programs in it.
	SrtProxy = "srt's proxy"
	// ByAddress asks for no name.
	ByAddress = "directly, by address"
	NoRules   = "the same without rules"
	RunAlone  = "carrel run, nothing mounted"

	UseraddBwrap = "useradd -m + bwrap"
	PodmanRun    = "podman run --rm"
	Useradds     = "useradd -m, one by one"
	UserdelR     = "userdel -r"
	TarPack      = "tar -I 'zstd -T2 -3' -c"
	TarUnpack    = "tar -I 'zstd -T2 -3' -x, sync"
	WithinTCP    = "TCP in its network"
	NodeFile     = "Node's fs: write, fsync, rename, read"
	LinuxAgent   = "LinuxAgent"
	Ansible      = "ansible"
	AnsibleAll   = "ansible --forks 100"
	OneBefore    = "one workspace, before"
	OneBeside    = "one workspace, beside"
)

// The rows by their ids; what is before the slash is the figure that -only names.
const (
	Exec         = "exec"
	ExecCaptured = "exec/captured"
	ExecExecutor = "exec/executor"
	ExecAPI      = "exec/api"
	Exec8        = "exec8"
	// Clients in other languages.
	SDKPython     = "sdks/python"
	SDKTypeScript = "sdks/typescript"
	Exec8Latency  = "exec8/latency"
	Exec8Spread   = "exec8/spread"
	// What clients do.
	ClientsKey   = "clients"
	ClientsWatch = "clients/watch"
	ClientsIn    = "clients/in"
	ClientsOut   = "clients/out"
	ClientsFiles = "clients/files"
	ClientsMCP   = "clients/mcp"
	// From a server in a workspace, by a Unix socket and by a loopback address.
	ClientsPort    = "clients/port"
	ClientsPortTCP = "clients/port-tcp"
	// E2B's client in Node.
	E2BCreate    = "e2b"
	E2BRun       = "e2b/run"
	E2BFile      = "e2b/file"
	E2BBurst     = "e2b/burst"
	CLI          = "cli"
	Ping         = "ping"
	StreamNull   = "stream/null"
	StreamPipe   = "stream/pipe"
	StreamAPI    = "stream/api"
	Start        = "start"
	StartAPI     = "start/api"
	MemExecutor  = "memory/executor"
	MemBusy      = "memory/executor-after-load"
	MemDaemon    = "memory/daemon"
	MemSlope     = "memory/daemon-slope"
	MemBroker    = "memory/broker"
	MemBwrap     = "memory/bwrap"
	Audit        = "audit"
	AuditLatency = "audit/latency"
	AuditAlone   = "audit/alone"
	// AuditJournaled is on a file system with a journal, in a file.
	AuditJournaled = "audit/journaled"
	Verify         = "verify"
	VerifySigned   = "verify/signed"
	VerifyCount    = "verify/records"

	Policy     = "policy"
	PolicyRate = "policy/rate"
	PolicyMany = "policy/rules"
	Answered   = "answered"

	Run       = "run"
	RunHere   = "run/here"
	RunSlow   = "run/srt"
	RunMemory = "run/memory"

	StagedStart = "staged"
	StagedBuild = "staged/build"
	StagedDiff  = "staged/diff"
	StagedApply = "staged/apply"

	EgressNew   = "egress"
	EgressKept  = "egress/kept"
	EgressBulk  = "egress/bulk"
	EgressStart = "egress/start"
	EgressIdle  = "egress/idle"
	EgressJudge = "egress/rules"
	// TLS that is intercepted for a secret.
	EgressTLSNew  = "egress/intercepted"
	EgressTLSKept = "egress/intercepted-kept"
	EgressTLSBulk = "egress/intercepted-bulk"
	// In workspaces of the daemon.
	EgressOpen     = "egress/open"
	EgressTLSOpen  = "egress/intercepted-open"
	EgressStartAPI = "egress/start-api"

	// From a model's answer to the first effect of its command.
	Agent       = "agent"
	AgentCalls  = "agent/calls"
	AgentTokens = "agent/tokens"
	AgentPrompt = "agent/prompt"
	AgentStep   = "agent/step"
	AgentPatch  = "agent/patch"
	Fleet       = "fleet"
	FleetMemory = "fleet/memory"

	Create        = "create"
	CreateBare    = "create/bare"
	Creates       = "creates"
	CreatesEach   = "creates/each"
	Destroy       = "destroy"
	Archive       = "archive"
	Restore       = "archive/restore"
	ScaleExec     = "scale/exec"
	ScaleList     = "scale/list"
	ScaleDaemonUp = "scale/daemon-start"
	ScaleBrokerUp = "scale/broker-start"
)

// Reaches are the figures that carrel is to come to. Times are in the row's unit.
var Reaches = []Reach{
	{ID: Exec, Peer: Fork, Of: Ratio, Limit: 2}, // with policy on
	{ID: Exec, Peer: Floor, Of: Ratio, Limit: 1.2},
	{ID: Exec, Peer: Bwrap, Of: Ratio, Limit: 0.45},
	{ID: Exec, Peer: Runc, Of: Ratio, Limit: 0.1},
	{ID: Exec8, Peer: Fork, Of: Ratio, Least: true, Limit: 0.5},
	{ID: SDKPython, Peer: GoSDK, Of: More, Limit: 3},
	{ID: SDKTypeScript, Peer: GoSDK, Of: More, Limit: 3},
	{ID: ClientsKey, Of: P50, Limit: 0.5},
	{ID: ClientsKey, Peer: Tmux, Of: Ratio, Limit: 1},
	{ID: ClientsWatch, Of: P50, Limit: 5},
	{ID: ClientsIn, Peer: Cp, Of: Ratio, Least: true, Limit: 0.5},
	{ID: ClientsOut, Peer: Cp, Of: Ratio, Least: true, Limit: 0.5},
	{ID: ClientsFiles, Peer: TarTar, Of: Ratio, Limit: 1.5},
	{ID: ClientsMCP, Peer: GoSDK, Of: More, Limit: 3},
	{ID: E2BCreate, Of: P50, Limit: 60},
	{ID: E2BRun, Of: P50, Limit: 6},
	{ID: E2BFile, Of: P50, Limit: 10},
	{ID: E2BBurst, Of: P50, Limit: 4000},
	{ID: CLI, Peer: Bwrap, Of: Ratio, Limit: 1.3},
	{ID: CLI, Peer: Crun, Of: Ratio, Limit: 1},
	{ID: CLI, Peer: Runc, Of: Ratio, Limit: 0.5},
	{ID: Ping, Of: P50, Limit: 60},
	{ID: Ping, Of: P99, Limit: 300},
	{ID: StreamNull, Peer: Cat, Of: Ratio, Least: true, Limit: 0.5},
	{ID: StreamPipe, Peer: Cat, Of: Ratio, Least: true, Limit: 0.5},
	{ID: Start, Of: P50, Limit: 15},
	{ID: MemExecutor, Of: P50, Limit: 3},
	{ID: MemDaemon, Peer: Allowance, Of: Ratio, Limit: 1},
	{ID: MemBroker, Of: P50, Limit: 12},
	{ID: Audit, Peer: OneSync, Of: Ratio, Least: true, Limit: 20},
	{ID: AuditLatency, Of: P99, Limit: 3},
	{ID: Verify, Of: P50, Least: true, Limit: 200},
	{ID: VerifySigned, Of: P50, Least: true, Limit: 200},
	{ID: VerifyCount, Of: P50, Least: true, Limit: 500_000},
	{ID: Policy, Of: P50, Limit: 20},
	{ID: Policy, Of: P99, Limit: 200},
	{ID: PolicyRate, Of: P50, Least: true, Limit: 50_000},
	{ID: PolicyMany, Peer: Builtin, Of: Ratio, Limit: 2},
	{ID: Answered, Of: P50, Limit: 5},
	{ID: Run, Peer: Bwrap, Of: Ratio, Limit: 4},
	{ID: RunSlow, Peer: Srt, Of: Ratio, Limit: 0.05},
	{ID: RunHere, Peer: RunAlone, Of: Ratio, Limit: 1.2},
	{ID: RunMemory, Of: P50, Limit: 12},
	{ID: StagedStart, Peer: Direct, Of: More, Limit: 3},
	{ID: StagedBuild, Peer: Direct, Of: Ratio, Limit: 1.1},
	{ID: StagedDiff, Of: P50, Limit: 150},
	{ID: StagedApply, Of: P50, Limit: 300},
	{ID: EgressNew, Peer: Direct, Of: More, Limit: 400},
	{ID: EgressKept, Peer: Direct, Of: More, Limit: 150},
	{ID: EgressBulk, Peer: Direct, Of: Ratio, Least: true, Limit: 0.8},
	{ID: EgressTLSKept, Peer: Direct, Of: More, Limit: 400},
	{ID: EgressTLSKept, Of: P99, Limit: 3000},
	{ID: EgressTLSBulk, Peer: Direct, Of: Ratio, Least: true, Limit: 0.4},
	{ID: EgressOpen, Of: P50, Limit: 64},
	{ID: EgressTLSOpen, Of: P50, Limit: 128},
	{ID: EgressJudge, Of: P50, Limit: 5},
	{ID: EgressStartAPI, Peer: NoRules, Of: More, Limit: 2},
	{ID: EgressIdle, Of: P50, Limit: 12},
	{ID: Agent, Peer: LinuxAgent, Of: Ratio, Limit: 0.2},
	{ID: AgentCalls, Peer: LinuxAgent, Of: Ratio, Limit: 0.5},
	{ID: AgentTokens, Peer: LinuxAgent, Of: Ratio, Limit: 0.5},
	{ID: AgentPrompt, Of: P50, Limit: 200},
	{ID: AgentStep, Peer: Fork, Of: More, Limit: 3},
	{ID: AgentPatch, Of: P50, Limit: 200},
	{ID: Fleet, Peer: Ansible, Of: Ratio, Limit: 0.1},
	{ID: Fleet, Peer: AnsibleAll, Of: Ratio, Limit: 1. / 3},
	{ID: FleetMemory, Of: P50, Limit: 1024},
	{ID: Create, Peer: UseraddBwrap, Of: Ratio, Limit: 2},
	{ID: Create, Peer: PodmanRun, Of: Ratio, Limit: 0.25},
	{ID: CreateBare, Peer: UseraddBwrap, Of: Ratio, Limit: 1.6},
	{ID: Creates, Peer: Useradds, Of: Ratio, Limit: 1.5},
	{ID: Destroy, Peer: UserdelR, Of: Ratio, Limit: 2},
	{ID: Archive, Peer: TarPack, Of: Ratio, Least: true, Limit: 0.7},
	{ID: Restore, Peer: TarUnpack, Of: Ratio, Least: true, Limit: 0.7},
	{ID: ScaleExec, Peer: OneBefore, Of: Ratio, Limit: 2},
	{ID: ScaleExec, Peer: OneBeside, Of: Ratio, Limit: 2},
	{ID: ScaleList, Of: P50, Limit: 20},
	{ID: ScaleDaemonUp, Of: P50, Limit: 1000},
	{ID: ScaleBrokerUp, Of: P50, Limit: 2000},
}

// beside reports whether the reach is about a peer.
func (x Reach) beside() bool { return x.Of == Ratio || x.Of == More }

// more is how much higher the median is than the peer's, 0 without one.
func (r Row) more() float64 {
	if r.Other == nil {
		return 0
	}
	return r.Ours.P50 - r.Other.P50
}

func (x Reach) text() string {
	sign := "≤"
	if x.Least {
		sign = "≥"
	}
	return fmt.Sprintf("%s %s %g", [...]string{"ratio", "p50", "p99", "p50 more by"}[x.Of], sign, x.Limit)
}

func (x Reach) describe() string {
	if x.Peer == "" {
		return x.ID + " " + x.text()
	}
	return fmt.Sprintf("%s beside %s %s", x.ID, x.Peer, x.text())
}

// judge holds a row against its reaches. Those that are about our own value alone go to
// the first of the rows that show it beside one peer after the other.
func judge(row Row, first bool) []Judged {
	var out []Judged
	for _, x := range Reaches {
		if x.ID != row.ID || (x.beside() && x.Peer != row.Peer) || (!x.beside() && !first) {
			continue
		}
		v := [...]float64{row.Ratio, row.Ours.P50, row.Ours.P99, row.more()}[x.Of]
		ok := (v > 0 || x.Of == More && row.Other != nil && row.Ours.P50 > 0) && v <= x.Limit // 0 is no measurement
		if x.Least {
			ok = v >= x.Limit
		}
		out = append(out, Judged{Text: x.text(), Value: v, Limit: x.Limit, Reached: ok})
	}
	return out
}
