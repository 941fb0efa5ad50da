// Package root holds the tests that attack a real carrel, as root, on the host they run
// on: each tries what must not be possible and sees it refused, and recorded where it
// passes the gate. What a test of a package below can show is not repeated here.
//
// A test that plants the violation stands beside the attacks: each attack program is
// also run where it succeeds, so that "refused" is known to be the boundary's doing.
//
// Everything that the tests make has a name with "crt" in it, lies below one directory
// in /var/tmp, and is removed when the test binary ends, also after a failure.
package root
