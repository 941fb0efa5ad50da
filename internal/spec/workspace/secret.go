package workspace

import "time"

// Secret is what is known of a secret that carrel keeps for the commands of its owner's workspaces, without its value.
type Secret struct {
	// Owner is who keeps it: it is for their workspaces only. It is named by the variable in which commands have a
	// placeholder.
	Owner, Name string
	// Hosts are the rules of the hosts that get the value, as "api.example.org". Headers are the names of the headers in
	// which they get it; without any it is in all of them.
	Hosts, Headers []string
	// Sending is how it is sent to them: whether it is injected, and in which requests.
	Sending Sending
	// Created is when it was first stored, and Rotated when it last got another value; zero for never.
	Created, Rotated time.Time
}

// Sending is how a secret is sent. Package httprule has the same type, and reads it: what has root has no use for that.
type Sending struct {
	Inject   string   `json:"inject,omitempty"`
	Methods  []string `json:"methods,omitempty"`
	Paths    []string `json:"paths,omitempty"`
	Pointers []string `json:"json,omitempty"`
}
