// Package sqlite links the database engine that package store uses, for programs that open
// one. It is apart so that those that share code with the daemon and open none, as the
// command line, need not carry it or start it.
package sqlite

import _ "modernc.org/sqlite" // the driver "sqlite" of database/sql
