package deps_test

import "github.com/carrel-dev/carrel/test/deps"

// rows are the rules of the house: the rooms, from top to bottom, and packages that may do less than their room.
// docs/architecture.md says what each holds.
var rows = []deps.Row{
	{
		Path: "internal/daemon", Level: 12, Not: []string{"internal/boundary/broker", "internal/boundary/executor", "sdk/"},
		Why: "broker and executor are other processes, and the SDK is a client",
	},
	{
		Path: "internal/cli", Level: 12,
		Not: []string{
			"internal/gate/", "internal/service/", "internal/state/", "internal/boundary/broker", "internal/boundary/executor",
			"internal/boundary/runtime/",
		},
		Why: "a client, as everybody's; what runs without a daemon is in rootless",
	},
	{
		Path: "internal/surface", Level: 11,
		Not: []string{"internal/state/store/", "internal/boundary/runtime/namespace", "internal/boundary/broker", "internal/boundary/executor"},
		Why: "it translates for the gate, and reaches neither store nor backend",
	},
	{
		Path: "internal/agent", Level: 10,
		Not: []string{"internal/boundary/broker", "internal/boundary/executor", "internal/boundary/runtime/namespace"},
		Why: "it proposes, and has what was judged carried out",
	},
	{
		Path: "internal/rootless", Level: 10, Not: []string{"internal/boundary/executor", "internal/state/store/", "sdk/"},
		Why: "a run is a process of its own, keeps no state but its record, and is no client",
	},
	{
		Path: "internal/service", Level: 9,
		Not: []string{"internal/boundary/runtime/namespace", "internal/boundary/broker", "internal/boundary/executor"},
		Why: "it serves no protocol and knows no backend",
	},
	{
		Path: "internal/egress", Level: 8, Not: []string{"internal/boundary/runtime/"},
		Why: "what reaches it is hostile: it knows hosts and rules, and no workspace",
	},
	{Path: "internal/gate", Level: 7, Why: "it decides, records and hands out permits; it knows no surface and no backend"},
	{
		Path: "internal/boundary", Level: 7, Not: []string{"net/http", "internal/state/audit", "internal/policy/rules"},
		Why: "it holds and carries out, and knows neither policy nor records",
	},
	{
		Path: "internal/files", Level: 7, Not: []string{"net", "net/http", "os/exec", "archive/tar"},
		Why: "files are bytes and names; archive/tar has no sparse files",
	},
	{Path: "internal/state", Level: 6, Not: []string{"internal/policy/rules"}, Why: "it keeps what it is told"},
	{Path: "internal/wire", Level: 5, Why: "messages, and how they travel"},
	{Path: "internal/spec", Level: 4, Why: "the vocabulary"},
	{Path: "internal/policy", Level: 3, Why: "it judges what it is handed"},
	{Path: "internal/linux", Level: 2, Why: "what the kernel offers, nothing of carrel"},
	{Path: "internal/base", Level: 1, Why: "words, nothing of carrel"},

	{
		Path: "sdk/go", Only: []string{"gen", "internal/base", "internal/linux", "internal/wire", "internal/spec"},
		Why: "it knows the wire, not the daemon",
	},
	{Path: "cmd", Only: []string{
		"internal/agent/hosts/jobs", "internal/agent/loop", "internal/base/build", "internal/base/errtext", "internal/boundary/broker",
		"internal/boundary/executor", "internal/boundary/hostrun", "internal/cli", "internal/daemon", "internal/egress/serve",
		"internal/files/archive", "internal/files/program",
		"internal/wire/bridge",
	}, Why: "main hands over to one package"},
	{
		Path: "internal/agent/loop",
		Only: []string{"internal/base", "internal/wire/linerpc", "internal/agent/llm", "internal/agent/plan", "internal/spec/tools"},
		Not:  []string{"os/exec"},
		Why:  "a program without power asks a model and proposes",
	},
	{
		Path: "internal/agent/llm", Only: []string{"internal/base"}, Not: []string{"os/exec"},
		Why: "a client of a provider, linked into programs without power",
	},
	{Path: "internal/agent/tasks", Not: []string{"net", "net/http", "os/exec"}, Why: "it has the pipes of its programs alone"},
	{Path: "internal/agent/turns", Not: []string{"net", "net/http", "os/exec"}, Why: "it has plans carried out by the gate"},
	{
		Path: "internal/agent/hosts/fleet", Only: []string{"internal/base", "internal/policy/shell"}, Not: []string{"os/exec"},
		Why: "commands over SSH; it runs nothing here",
	},
	{
		Path: "internal/surface/mcp", Only: []string{"gen", "internal/base", "sdk/go"},
		Why: "what an agent does goes over the API, as everybody's",
	},
	{
		Path: "internal/surface/acp", Only: []string{"internal/base", "internal/wire/linerpc"}, Not: []string{"os/exec"},
		Why: "it passes on what an editor says",
	},
	{Path: "internal/cli/watch", Only: []string{"internal/base/termtext"}, Not: []string{"os/exec"}, Why: "it shows what it is handed"},
	{
		Path: "internal/cli/chatui", Only: []string{"internal/base/termtext", "internal/agent/messages"}, Not: []string{"os/exec"},
		Why: "it shows what it is handed",
	},
	{Path: "internal/egress/proxy", Only: []string{}, Not: []string{"os"}, Why: "protocols over bytes"},
	{Path: "internal/egress/intercept", Not: []string{"os"}, Why: "it holds secrets: connections and certificates are handed in"},
	{Path: "internal/boundary/sandbox", Not: []string{"os/exec"}, Why: "linked into every executor"},
}

// pure are packages whose answer depends on their arguments alone: no files, no network, no clock, no chance.
var pure = []string{
	"internal/spec", "internal/policy", "internal/boundary/screen", "internal/agent/plan", "internal/agent/runbooks", "internal/agent/seat",
}
