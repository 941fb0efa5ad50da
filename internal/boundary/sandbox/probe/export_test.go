package probe

// Subordinate is what doctor says of a user's ids in these files.
var Subordinate = subordinate

// ProtectedLinks is what doctor says of the settings in a directory like /proc/sys/fs, and
// HiddenProcesses what it says of a file like /proc/self/mountinfo.
var (
	ProtectedLinks  = protectedLinks
	HiddenProcesses = hiddenProcesses
	SharedNumbers   = sharedNumbers
)

// RunCode runs instructions in a guest, and MayOpen says how to get the right to open a device.
var (
	RunCode = runCode
	MayOpen = mayOpen
)

// SweepProbes removes groups that killed processes left.
var SweepProbes = sweepProbes
