package probe

import (
	"os"
	"strings"
)

// tryProtectedLinks looks at what keeps users from making links that programs of root could follow.
func tryProtectedLinks(*Config) (State, string, string) { return protectedLinks("/proc/sys/fs") }

func protectedLinks(dir string) (state State, found, remedy string) {
	var off []string
	for _, name := range []string{"protected_hardlinks", "protected_symlinks"} {
		b, err := os.ReadFile(dir + "/" + name)
		if err != nil {
			return Partly, err.Error(), "look with: sysctl fs." + name
		}
		if strings.TrimSpace(string(b)) == "0" {
			off = append(off, "fs."+name)
		}
	}
	if off == nil {
		return Yes, "fs.protected_hardlinks and fs.protected_symlinks are on", ""
	}
	return No, strings.Join(off, " and ") + " = 0: any user of this host can lay links for programs that run as root",
		"sysctl -w " + strings.Join(off, "=1 ") + "=1, and the same in /etc/sysctl.d"
}

// tryHiddenProcesses says who on the host can read command lines.
func tryHiddenProcesses(*Config) (State, string, string) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Partly, err.Error(), "look with: findmnt /proc"
	}
	return hiddenProcesses(string(b))
}

// hiddenProcesses finds the mount on /proc that counts, the last one, as proc(5) and
// Documentation/filesystems/proc.rst have it.
func hiddenProcesses(mountinfo string) (state State, found, remedy string) {
	hidden := ""
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		mount, super := strings.Fields(before), strings.Fields(after)
		if len(mount) < 5 || mount[4] != "/proc" || len(super) < 3 || super[0] != "proc" {
			continue
		}
		hidden = ""
		for option := range strings.SplitSeq(super[2], ",") {
			if v, ok := strings.CutPrefix(option, "hidepid="); ok && v != "0" && v != "off" {
				hidden = option
			}
		}
	}
	if hidden != "" {
		return Yes, "/proc is mounted with " + hidden, ""
	}
	return Partly, "/proc is mounted without hidepid: \"ps\" on this host shows every user the command lines of workspaces; " +
		"workspaces do not see those of others", "keep secrets out of command lines, or: mount -o remount,hidepid=invisible /proc"
}
