package sandbox

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/selfcheck"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// openingDef is one control that is off for an opening, and why.
type openingDef struct {
	opening workspace.Opening
	control string
	// tried: the self-check sees that it is open.
	tried bool
	why   string
}

// openings is what each opening gives up.
var openings = []openingDef{
	{workspace.UserNS, socketCount, false, "a network that commands make has sockets that nobody counts"},
	{workspace.IOUring, socketCount, false, "a ring opens sockets past the filter"},
	{
		workspace.UserNS, "nested-namespaces", true,
		"commands can make namespaces and have every capability in those, which is a way into more of the kernel",
	},
	{workspace.NestedMounts, "landlock", true, "Landlock lets nobody mount, so files are held by mounts and modes alone"},
	{workspace.IOUring, "io_uring", true, "what a ring does passes the system call filter by"},
	{workspace.IOUring, "sockets", false, "a ring opens sockets of families that the filter refuses"},
}

// open turns a verified control off if an opening of it was asked for. The self-check must have
// seen that it is open.
func (a Asked) open(c *workspace.Control, findings []Finding, remedy string) {
	i := slices.IndexFunc(openings, func(o openingDef) bool { return o.control == c.ID && slices.Contains(a.Allow, o.opening) })
	if i < 0 || c.State != workspace.Verified {
		return
	}
	def := openings[i]
	if def.tried && !slices.ContainsFunc(findings, func(f Finding) bool { return f.Control == c.ID && f.Opened == def.opening }) {
		c.State, c.Evidence, c.Remedy = workspace.Failed, "asked for with --allow "+string(def.opening)+", and closed; "+c.Evidence, remedy
		return
	}
	c.State, c.Opened, c.Requested, c.Required = workspace.Off, def.opening, false, false
	c.Evidence = "asked for with --allow " + string(def.opening) + ": " + def.why + "; " + c.Evidence
	c.Remedy = "leave --allow " + string(def.opening) + " out"
}

// checkOpenings tries what each opening opens: it must be closed, or, if it was asked for, open.
// cloneUser are the arguments of a clone3 into a user namespace.
func (s *stage) checkOpenings(m *selfcheck.Memory, cloneUser uintptr) []check {
	const nested = "nested-namespaces"
	newUser := []uintptr{cloneUser, 88}
	writable := []uintptr{atFDCWD, m.String(canary), unix.O_WRONLY | unix.O_CLOEXEC, 0}
	const ring = "io_uring_setup"
	return []check{
		try(nested, "clone3(NEWUSER)", []unix.Errno{unix.ENOSPC}, unix.SYS_CLONE3, newUser...).forks().only(without(userNS)),
		try(nested, "unshare(NEWUSER)", byRule, unix.SYS_UNSHARE, unix.CLONE_NEWUSER).only(without(userNS)),
		try(nested, "clone(NEWUSER)", byRule, unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0).forks().only(without(userNS)),
		try(nested, "setns", bySeccomp, unix.SYS_SETNS, 0, 0).only(without(userNS)),
		try(nested, "clone3(NEWUSER)", nil, unix.SYS_CLONE3, newUser...).forks().opens(workspace.UserNS),
		s.readNumber(m, nested, "max_user_namespaces", nestedMax, false).only(with(userNS)),
		// It is in its own already, and to enter another takes a right there.
		try(nested, "setns", []unix.Errno{unix.EPERM, unix.EINVAL}, unix.SYS_SETNS, 0, 0).only(with(userNS)),

		// The mode of this file lets everyone write.
		try("landlock", "open "+canary, []unix.Errno{unix.EACCES}, unix.SYS_OPENAT, writable...).only(without(nestedMounts)),
		try("landlock", "open "+canary, nil, unix.SYS_OPENAT, writable...).opens(workspace.NestedMounts),

		try("io_uring", ring, bySeccomp, unix.SYS_IO_URING_SETUP, 1, 0).only(without(ioUring)),
		// It gets as far as reading its parameters.
		try("io_uring", ring, []unix.Errno{unix.EFAULT}, unix.SYS_IO_URING_SETUP, 1, 0).opens(workspace.IOUring),
	}
}

func succeeds(r selfcheck.Result) (bool, string) { return r.Ran && r.Errno == 0, r.Name() }
