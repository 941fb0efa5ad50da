// Package programs runs what developers and agents use in workspaces, as an ordinary user
// and as root through the daemon: each program of the table does its usual work there, or
// the table says what keeps it from it. What a host does not have is skipped, with the
// command that installs it ("scripts/prerequisites programs" does it for all).
//
// Everything that the tests make lies below one directory in /var/tmp and goes with the
// test binary, but for .cache/programs, where packages are kept that the host's own npm and
// pip fetch.
package programs
