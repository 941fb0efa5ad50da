package workspace

import "time"

// Connections are those of a workspace to hosts.
type Connections struct {
	// Open are open now, Ended have ended or were refused; the oldest come first.
	Open, Ended []Connection
}

// Connection is one, or equal refusals.
type Connection struct {
	// Number is that of one that has ended. They are numbered for each workspace from 1 on, as long as the daemon lives.
	Number   uint64
	Began    time.Time
	Duration time.Duration
	// Way is how it was asked for: transparent, connect, http, socks or dns.
	Way string
	// Host is a name or an address; Port is 0 for a name that was only asked about.
	Host string
	Port uint16
	// Address is what was connected to.
	Address string
	// Rule, Secrets (names) and Requests are known once it has ended.
	Rule     string
	Secrets  []string
	Requests int64
	// Refused says why it was refused or cut, "" if it was not.
	Refused string
	// Bytes to the host and from it.
	SentBytes, ReceivedBytes int64
	// Count is how many equal refusals this stands for, at least 1.
	Count int64
}
