// Package job holds the words between the program that starts a guest and the init
// inside it: what to run, and what came of it.
//
//	host  → guest   plan.json in the initramfs: one Plan
//	guest → host    a virtio port named Port: one Event a line, as JSON
//	                  boot · (start · output… · end)… · done
//
// It must not touch the host or the guest: it is data, and the judgement of it.
package job

// Port is the name of the virtio port that carries events.
const Port = "carrel.events"

// Plan is what a guest is to do.
type Plan struct {
	// Cgroup says which control group file systems are mounted.
	Cgroup Layout `json:"cgroup"`
	// Modules are loaded in this order; each is a file in /modules of the initramfs.
	Modules []string `json:"modules"`
	Jobs    []Job    `json:"jobs"`
}

// Layout is a way that a host mounts control groups.
type Layout string

// The layouts a guest can have. A host with both is called hybrid.
const (
	V2 Layout = "v2" // /sys/fs/cgroup is cgroup2 and hands every controller down
	V1 Layout = "v1" // one v1 hierarchy a controller below /sys/fs/cgroup, no v2
	// Systemd is v2 as systemd mounts it, which is PID 1.
	Systemd Layout = "systemd"
)

// Job is one command, run as root with nothing else running, but for systemd where that is PID 1.
type Job struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
	// Env is the whole environment.
	Env []string `json:"env"`
	Dir string   `json:"dir"`
	// Seconds until it is asked for its goroutines with SIGQUIT and then killed.
	Seconds int `json:"seconds"`
	// Tests says that it is a Go test binary run with -test.v.
	Tests bool `json:"tests,omitempty"`
	// Harm, if not empty, makes this a job that does harm on purpose: it passes if one
	// of its problems contains this text.
	Harm string `json:"harm,omitempty"`
}

// Kind is that of an Event.
type Kind string

// The kinds, in the order they come.
const (
	Boot   Kind = "boot"   // Text says what the guest is
	Start  Kind = "start"  // Job begins
	Output Kind = "output" // Text is one line of its output
	End    Kind = "end"    // Job ended; Problems, if any, make it a failure
	Done   Kind = "done"   // every job has ended
)

// Event is one line on the port.
type Event struct {
	Kind     Kind     `json:"kind"`
	Job      string   `json:"job,omitempty"`
	Text     string   `json:"text,omitempty"`
	Problems []string `json:"problems,omitempty"`
}
