package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// AppArmor restricts user namespaces on Ubuntu since 23.10 (kernel.apparmor_restrict_unprivileged_userns):
// a program without a profile with the rule "userns" gets no namespace, or one in which it has no
// capabilities (profile unprivileged_userns, since 24.04). So a clone that succeeds proves nothing.
func tryAppArmor(c *Config) (State, string, string) {
	limit, err := os.ReadFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	if err != nil {
		return Yes, "no AppArmor restriction on user namespaces", ""
	}
	label, err := os.ReadFile("/proc/self/attr/apparmor/current")
	if err != nil {
		label, _ = os.ReadFile("/proc/self/attr/current") // on older kernels
	}
	programs := c.Programs
	if self, err := os.Executable(); err == nil {
		programs = append([]string{self}, programs...)
	}
	return AppArmor(string(limit), string(label), programs)
}

// AppArmor judges the sysctl and the label of a process, and says how programs are allowed.
func AppArmor(limit, label string, programs []string) (state State, found, remedy string) {
	limit, label = strings.TrimSpace(limit), strings.TrimRight(label, "\x00\n ")
	switch {
	case limit == "0":
		return Yes, "AppArmor does not restrict user namespaces", ""
	case label != "" && label != "unconfined":
		return Yes, "AppArmor restricts user namespaces, and has a profile for this program: " + label, ""
	}
	return No, "AppArmor restricts unprivileged user namespaces, and has no profile for this program", allowed(programs)
}

const (
	profile  = "/etc/apparmor.d/carrel"
	allowAll = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
)

// allowed is the profile that lets programs, at just these paths, make user namespaces
// (apparmor.d(5)), and the sysctl that lets all.
func allowed(programs []string) string {
	lines := []string{"abi <abi/4.0>,", "include <tunables/global>"}
	for _, p := range programs {
		// What a profile would read as a pattern, or a shell as something else.
		if strings.ContainsAny(p, " *?[]{}^\"'\\\n,@$") || othersWrite(p) {
			return "install carrel where root alone writes (sudo make install), and see here again; or allow all programs: " + allowAll
		}
		lines = append(lines, fmt.Sprintf("profile %s %s flags=(unconfined) { userns, }", filepath.Base(p), p))
	}
	return "as root: printf '%s\\n' '" + strings.Join(lines, "' '") + "' > " + profile + " && apparmor_parser -r " + profile + "; " +
		"or, for all programs: " + allowAll
}

// othersWrite reports whether somebody but root could put another program at path, which
// would have its profile.
func othersWrite(path string) bool {
	for ; ; path = filepath.Dir(path) {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || st.Uid != 0 || st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
			return true
		}
		if path == filepath.Dir(path) {
			return false
		}
	}
}
