package main

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/test/vm/job"
)

// Where things are in the guest. A checkout below a home that only root may enter is
// the harder case for everything that carrel starts inside workspaces; tests whose other
// users run carrel need it where those can.
const (
	guestSource = "/root/carrel"
	checkoutBin = guestSource + "/bin"
	publicBin   = "/opt/carrel/bin"
)

// What runs in the guest with systemd, and where that has the packages.
const (
	servicesDir = "test/vm/services"
	packagesDir = guestSource + "/packages"
)

// suite is the packages whose tests run in the guest: those that ask the kernel for
// something that differs between hosts.
var suite = []struct {
	dir     string // of the package
	seconds int
	bin     string // publicBin, if not said
	some    string // the only tests that run without -full, as -test.run
	long    string // tests that run only with -full, as -test.skip
	once    bool   // without -full it runs with v2 alone: broker and whole carrels show what depends on the layout of control groups
}{
	{dir: "internal/boundary/sandbox/cgroup", seconds: 60},
	// Those about control groups of steps and what is in them; the rest depends on no layout.
	{dir: "internal/boundary/hostrun", seconds: 300, some: "^Test(MemoryOfFiles|GroupsThatWereGiven|BoundsAreReported|Ready.*)$"},
	{dir: "internal/boundary/sandbox/seccomp", seconds: 60, once: true},
	{dir: "internal/boundary/sandbox/probe", seconds: 60, once: true},
	// Those about what is judged, not about what the kernel does.
	{dir: "internal/boundary/sandbox", seconds: 480, once: true, long: "^TestOpeningsAreAsAskedFor$"},
	// Those that move much output, start much, try for seconds or draw screens; nothing of it depends on the host.
	{
		dir: "internal/boundary/executor", seconds: 480, once: true, long: "^Test(OutputWithoutAReaderHoldsOnlyTheCommand|CaptureIsBounded|" +
			"DetachedOutputIsBounded|SignalsFromOutside|HoldWaitsForBirths|KeptOutput.*|TheLargestKeptOutput|" +
			"CapturedOutputOfManyCommands|UnreadInputOfManyCommands|ManyFollowers.*|AFollowerThatDoesNotReadHoldsNothingUp|Session.*|" +
			"(TypedAtTheEnd|SlowClient|Escapes)OfASession|Recording)$",
	},
	// Those about its ledger and the user database, which are files everywhere, and what fills
	// and mends images, which is the same wherever there are loop devices.
	{
		dir: "internal/boundary/broker", seconds: 480,
		long: "^Test(LedgerTorn|LedgerCompacts.*|LedgerOnAFullDisk|ListInParts|TornUserIsRemoved|" +
			"ManyAtOnce|GroupAndLink|DiskBombs|ImageAfterACrash|HalfMadeImage|AnotherImageIsSeen|ImageOfAnother|Countersign.*)$",
	},
	{dir: "internal/linux/peercred", seconds: 30, once: true},
	// Those of a daemon for one user, and those that take many runs: emulated, a run takes two
	// seconds.
	// Programs that others wrote reach hosts in the same way everywhere, and what is wrong is refused in the same way.
	{
		dir: "test/rootless", seconds: 480, once: true, long: "^Test(Own.*|EveryOwn.*|Run.*|MountRace|Together|Terminal.*|Attacks|Conformance|" +
			"ManyStaged.*|ApplyIsKilled|SignalAtAnyMoment|Egress(Programs|Git|SSH|PackageClients|Cargo|Clients.*|RulesThatAreWrong|AsksNobody)|" +
			"Secret.*|Model.*|RulesWithoutEffect)$",
	},
	{dir: "test/vm/whole", seconds: 240, bin: checkoutBin},
	// The first changes a host for a moment, and is skipped there; the second is about control groups.
	{dir: "test/root", seconds: 900, some: "^Test(ACrashStartsNothingOnTheHost|TheCeilingMeetsWhoFillsIt)$"},
}

// jobs makes the plan of one guest: the suite, then the harms.
func jobs(l job.Layout, quick, full bool) []job.Job {
	if l == job.Systemd {
		return append([]job.Job{{
			Name: "services", Argv: []string{guestTest(servicesDir), "-test.v", "-test.timeout=0"}, Tests: true, Dir: guestSource, Seconds: 900,
			Env: append(environment(), "CARREL_TEST_PACKAGES="+packagesDir),
		}}, slices.DeleteFunc(harms(l), func(j job.Job) bool { return j.Name != "harm/exit-code" && j.Name != "harm/hang" })...)
	}
	var all []job.Job
	for _, s := range suite {
		if s.once && l == job.V1 && !full {
			continue
		}
		argv := []string{guestTest(s.dir), "-test.v", "-test.timeout=0"}
		switch {
		case full:
		case s.some != "":
			argv = append(argv, "-test.run="+s.some)
		case s.long != "":
			argv = append(argv, "-test.skip="+s.long)
		}
		all = append(all, job.Job{
			Name: strings.TrimPrefix(strings.TrimPrefix(s.dir, "internal/"), "test/"), Argv: argv, Tests: true,
			Dir: guestSource + "/" + s.dir, Seconds: s.seconds,
			Env: append(environment(), "CARREL_TEST_BIN="+cmp.Or(s.bin, publicBin), "CARREL_TEST_CGROUP="+string(l)),
		})
	}
	if !quick {
		all = append(all, harms(l)...)
	}
	return all
}

// environment puts temporary files on the disk: the tmpfs of kernels before 6.3 cannot
// show files under other owners, which project mounts need.
func environment() []string {
	return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "USER=root", "LANG=C.UTF-8", "TMPDIR=/var/tmp"}
}

// leftOut says what of the suite only -full runs.
func leftOut() []string {
	var all []string
	for _, s := range suite {
		if s.once {
			all = append(all, s.dir+" in v1")
		}
		switch {
		case s.some != "":
			all = append(all, s.dir+" but "+s.some)
		case s.long != "":
			all = append(all, s.dir+" "+s.long)
		}
	}
	return all
}

// testBinary is the name that `go test -c` gives to a package's tests.
func testBinary(dir string) string { return path.Base(dir) + ".test" }

// guestTest is where it stands in the guest, beside its package's testdata.
func guestTest(dir string) string { return path.Join(guestSource, dir, testBinary(dir)) }

// harms are what each guard of the guest must see. They come last, because what they
// leave stays.
func harms(l job.Layout) []job.Job {
	group := map[job.Layout]string{job.V2: "/sys/fs/cgroup/left", job.V1: "/sys/fs/cgroup/memory/left"}[l]
	var all []job.Job
	for _, h := range []struct{ name, script, seen string }{
		{"exit-code", "exit 3", "exit code 3"},
		{"signal", "kill -ABRT $$", "signal SIGABRT"},
		{"hang", "exec sleep 100", "ran out of its 1 seconds"},
		{"process", "setsid sleep 100 &", "left a process: "},
		{"control-group", "mkdir " + group, "left a control group " + group},
		{"mount", "mount -t tmpfs none /opt", "left a mount /opt"},
		{"user", "useradd -M left", "left a line in /etc/passwd: left"},
		{"file", "touch /run/left", "left a file /run/left"},
		{"lost-file", "rm /etc/hostname", "took away a file /etc/hostname"},
	} {
		seconds := 20
		if h.name == "hang" {
			seconds = 1
		}
		all = append(all, job.Job{
			Name: "harm/" + h.name, Argv: []string{"sh", "-c", h.script}, Dir: "/", Env: environment(),
			Seconds: seconds, Harm: h.seen,
		})
	}
	return append(all, job.Job{
		Name: "harm/no-test", Argv: []string{guestTest(suite[0].dir), "-test.v", "-test.run=^$"},
		Dir: guestSource + "/" + suite[0].dir, Env: environment(), Seconds: 20, Tests: true, Harm: "no test of it passed",
	})
}
