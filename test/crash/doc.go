// Package crash kills carrel everywhere and sees that nothing is left and nothing is
// lost: at every point that the source names, at random moments under load, and with what
// it needs from the host taken away. What decides is package check beside it.
//
// Everything that the tests make lies below one directory in /var/tmp, has a name that
// begins with "crk", and is removed when the test binary ends, also after a failure.
package crash
