package workspace

// Stats is what the commands of a running workspace use together. A number that the
// host does not give is -1.
type Stats struct {
	MemoryBytes     int64 `json:"memory_bytes"`
	MemoryPeakBytes int64 `json:"memory_peak_bytes"`
	Pids            int64 `json:"pids"`
	// CPUMicros is processor time since the start, in microseconds.
	CPUMicros int64 `json:"cpu_us"`
	// OOMKills is how many processes the kernel ended for memory since the start.
	OOMKills     int64 `json:"oom_kills"`
	ReadBytes    int64 `json:"read_bytes"`
	WrittenBytes int64 `json:"written_bytes"`
	// DiskBytes is what home and temporary directories hold, where that is limited.
	DiskBytes int64 `json:"disk_bytes"`
}

// UnknownStats has no number.
var UnknownStats = Stats{-1, -1, -1, -1, -1, -1, -1, -1}
