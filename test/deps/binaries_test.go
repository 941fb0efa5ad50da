package deps_test

import (
	"slices"

	"github.com/carrel-dev/carrel/test/deps"
)

var binaries = []struct {
	command   string
	allowed   []deps.Rule
	forbidden []deps.Rule
}{
	{
		"cmd/carrel-executor",
		append([]deps.Rule{
			{own + "internal/boundary/executor", "itself"},
			{own + "internal/wire/execapi", "its messages"},
			{own + "internal/boundary/screen", "what the terminal of a session shows: it is read here, where it harms its workspace alone"},
			{own + "internal/linux/memrelease", "keeps it small while nothing runs"},
		}, privileged...),
		append([]deps.Rule{
			{"os/exec", "commands are born by the executor's own fork, with the command's id"},
			{"log/", "it writes lines to the descriptor it was given"},
		}, notWithRights...),
	},
	{
		"cmd/carrel-broker",
		append([]deps.Rule{
			{own + "internal/boundary/broker", "itself"},
			{own + "internal/wire/brokerapi", "its messages"},
			{own + "internal/wire/egressapi/begin", "starts carrel-egress"},
			{own + "internal/linux/pidfd", "tells an executor from a later process with its pid"},
			{own + "internal/linux/pollfd", "watches a descriptor it inherited"},
			{own + "internal/linux/removal", "removes homes"},
			{own + "internal/base/bucket", "the pace of creation, and of the log"},
			{own + "internal/linux/logfile", "a log that stays small"},
			{own + "internal/base/startup", "the word that it serves, to up or systemd"},
			{own + "internal/linux/diskreserve", "what the ledger holds for a full disk"},
			{own + "internal/boundary/sandbox/cgroup", "makes the control groups"},
			{own + "internal/boundary/sandbox/launch", "starts executors"},
			{own + "internal/boundary/sandbox/image", "mounts file systems of a fixed size"},
			{own + "internal/linux/sealed", "the executor, as it was when the broker started"},
			{own + "internal/wire/mountgrant", "mounts that a client asks for"},
			{own + "internal/base/checkpoint", "countersigns the audit log"},
			{"golang.org/x/mod/sumdb/note", "signs, by crypto/ed25519"},
			{"golang.org/x/mod/sumdb/tlog", "checks proofs of RFC 6962"},
		}, privileged...),
		notWithRights,
	},
	// It has no rights of its own. It starts fast because it links little.
	{
		"cmd/carrel",
		[]deps.Rule{
			{own + "internal/cli/fast", "itself"},
			{own + "internal/cli/attach", "signals, texts and exit codes"},
			{own + "internal/wire/fdapi", "the channel"},
			{own + "internal/wire/fdapi/client", "its client's end"},
			{own + "internal/wire/jsonrpc", "the channel's framing"},
			{own + "internal/base/strictjson", "its decoder"},
			{own + "internal/base/errtext", "the text of an error"},
			{own + "internal/linux/pollfd", "pipes under the poller"},
			{own + "internal/linux/relay", "copies output"},
			{own + "internal/rootless/paths", "where a user's contexts would be"},
			{"github.com/containerd/errdefs", "the kinds of error"},
			{"golang.org/x/sys/unix", "system calls"},
		},
		[]deps.Rule{
			{"net/http", "the one request is written by hand"},
			{"crypto/tls", "it speaks on a local socket only"},
			{"os/exec", "it replaces itself"},
			{"regexp/", "its tables would be made at each start"},
		},
	},
	// It gives up its rights first, and reads what hostile programs and hosts send.
	{
		"cmd/carrel-egress",
		[]deps.Rule{
			{own + "internal/egress", "itself"},
			{own + "internal/egress/serve", "the process"},
			{own + "internal/egress/ca", "certificates for hosts that a secret is bound to or whose requests are judged"},
			{own + "internal/egress/intercept", "connections to those"},
			{own + "internal/egress/model", "the APIs of models"},
			{own + "internal/egress/room", "the bound of its memory"},
			{own + "internal/spec/budget", "what a request to one has used"},
			{own + "internal/base/redact", "secrets that never print"},
			{own + "internal/wire/egressapi", "its messages"},
			{own + "internal/egress/proxy", "the protocols"},
			{own + "internal/spec/netrule", "the rules"},
			{own + "internal/spec/httprule", "which requests they are for"},
			{own + "internal/base/bucket", "the pace of queries"},
			{own + "internal/base/build", "says which release it is"},
			{own + "internal/boundary/sandbox/netns", "the addresses inside"},
			{own + "internal/boundary/sandbox/drop", "rights that it gives up"},
			{own + "internal/boundary/sandbox/seccomp", "its own system call filter"},
			{"github.com/containerd/errdefs", "the kinds of error"},
			{"github.com/landlock-lsm/go-landlock/", "its own Landlock rules"},
			{"kernel.org/pub/linux/libs/security/libcap/psx", "its capabilities, on every thread"},
			{"golang.org/x/net/", "messages of DNS, names"},
			{"golang.org/x/text/", "names"},
			{"golang.org/x/sys/unix", "system calls"},
		},
		[]deps.Rule{
			{"os/exec", "it starts nothing"},
			{"os/signal", "a signal ends it"},
			{"os/user", "looks names up through the C library where there is one"},
			{"plugin", "no code is loaded"},
			{"runtime/cgo", "no C code"},
			{"database/sql/", "it keeps nothing"},
			{"archive/", "it unpacks nothing"},
			{"encoding/gob", "what it is told is JSON with known fields"},
			{"testing/", "no test code in the product"},
			{"text/template", "no templates, which call methods by name"},
			{"expvar", "opens an HTTP handler"},
		},
	},
	// It starts before each command of an agent on this machine, so fast because it links little.
	{
		"cmd/carrel-hostrun",
		[]deps.Rule{
			{own + "internal/boundary/hostrun", "itself: it supervises a command"},
			{own + "internal/agent/hosts/jobs", "itself: it supervises a job"},
			{own + "internal/base/build", "names its process"},
			{own + "internal/base/crashpoint", "empty calls where tests of another build end the process"},
			{own + "internal/base/fanout", "what the form of a workspace has"},
			{own + "internal/base/id", "the form of an id"},
			{own + "internal/linux/pidfd", "ends processes that it holds"},
			{own + "internal/boundary/sandbox", "mounts and rights"},
			{own + "internal/boundary/sandbox/cgroup", "bounds of the command of a job"},
			{own + "internal/boundary/sandbox/drop", "rights that it gives up"},
			{own + "internal/boundary/sandbox/netns", "what the sandbox has"},
			{own + "internal/boundary/sandbox/seccomp", "the command's system call filter"},
			{own + "internal/boundary/sandbox/selfcheck", "tries what must fail"},
			{own + "internal/linux/thread", "what the sandbox has"},
			{own + "internal/spec/hostfiles", "the names that stay read-only"},
			{own + "internal/spec/workspace", "the form of a control"},
			{"github.com/containerd/errdefs", "the kinds of error"},
			{"github.com/landlock-lsm/go-landlock/", "the command's Landlock rules"},
			{"kernel.org/pub/linux/libs/security/libcap/psx", "its capabilities, on every thread"},
			{"golang.org/x/sys/unix", "system calls"},
		},
		[]deps.Rule{
			{"net", "it speaks with its caller alone"},
			{"net/http", "as above"},
			{"crypto/tls", "as above"},
			{"os/user", "ids are numbers"},
			{"regexp/", "its tables would be made at each start"},
			{"text/template", "as above"},
			{"runtime/cgo", "no C code"},
			{"testing/", "no test code in the product"},
		},
	},
	// It gives up its rights first, and reads what a hostile workspace wrote.
	{
		"cmd/carrel-archive",
		[]deps.Rule{
			{own + "internal/files/archive", "itself"},
			{own + "internal/files/archive/tarfmt", "the format of its stream"},
			{own + "internal/wire/bridge", "joins an agent to carrel's tools"},
			{own + "internal/files/program", "works on files"},
			{own + "internal/files/changed", "finds what was changed"},
			{own + "internal/spec/hostfiles", "names what programs act on"},
			{own + "internal/wire/fileapi", "the messages of that"},
			{own + "internal/linux/filetree", "files and trees by descriptors, and the tar stream of cp"},
			{own + "internal/linux/removal", "removes trees"},
			{own + "internal/files/patch", "makes the changes to files of plans, as on a host"},
			{own + "internal/base/strictjson", "reads the journals of such changes"},
			{own + "internal/base/crashpoint", "empty calls where tests of another build end the process"},
			{own + "internal/base/build", "says which release it is"},
			{own + "internal/base/errtext", "the text of an error"},
			{"github.com/containerd/errdefs", "the kinds of error"},
			{"github.com/klauspost/compress/", "zstd"},
			{"golang.org/x/sys/unix", "system calls"},
		},
		append([]deps.Rule{
			{"net/", "it speaks to nobody"},
			{"os/exec", "it starts nothing"},
			{"os/signal", "a signal ends it"},
		}, slices.DeleteFunc(slices.Clone(notWithRights), func(r deps.Rule) bool { return workspaceOwn[r.Path] })...),
	},
}

// workspaceOwn are packages that carrel-archive may link: it has given its rights up before it reads anything, unpacks
// streams for cp with the id of the workspace, and searches files by expressions. archive/tar has os/user for headers
// that it makes of the file system, which package filetree does not.
var workspaceOwn = map[string]bool{"archive/": true, "os/user": true, "regexp/": true}
