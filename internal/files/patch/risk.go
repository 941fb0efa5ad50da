package patch

import (
	"io/fs"
	"strings"
)

// high is a part of the file system where a change reaches further than the file: who may log in, what starts by
// itself, what programs run. A path that begins with a slash is one directory or file; any other matches wherever its
// parts stand in a path.
var high = []struct{ path, why string }{
	{"/etc", "configuration of the system"},
	{"/boot", "what the machine starts"},
	{"/efi", "what the machine starts"},
	{"/usr", "programs of the system"},
	{"/bin", "programs of the system"},
	{"/sbin", "programs of the system"},
	{"/lib", "libraries of the system"},
	{"/lib32", "libraries of the system"},
	{"/lib64", "libraries of the system"},
	{"/opt", "programs of the system"},
	{"/root", "the home of root"},
	{"/proc", "the kernel"},
	{"/sys", "the kernel"},
	{"/dev", "devices"},
	{"/run", "what runs now"},
	{"/var/lib", "state of the system"},
	{"/var/spool/cron", "what runs by itself"},
	{"/var/spool/at", "what runs by itself"},
	{"/var/run", "what runs now"},
	{".ssh", "who may log in, and with which keys"},
	{".gnupg", "keys"},
	{".aws", "credentials"},
	{".azure", "credentials"},
	{".config/gcloud", "credentials"},
	{".kube", "credentials"},
	{".docker", "credentials"},
	{".netrc", "credentials"},
	{".pgpass", "credentials"},
	{".git-credentials", "credentials"},
	{".npmrc", "credentials, and what package clients run"},
	{".pypirc", "credentials"},
	{".env", "credentials"},
	{".bashrc", "what a shell runs at its start"},
	{".bash_profile", "what a shell runs at its start"},
	{".bash_login", "what a shell runs at its start"},
	{".bash_logout", "what a shell runs at its end"},
	{".bash_aliases", "what a shell runs at its start"},
	{".profile", "what a shell runs at its start"},
	{".zshrc", "what a shell runs at its start"},
	{".zshenv", "what a shell runs at its start"},
	{".zprofile", "what a shell runs at its start"},
	{".zlogin", "what a shell runs at its start"},
	{".config/fish", "what a shell runs at its start"},
	{".envrc", "what a shell runs in a directory"},
	{".pam_environment", "the environment of a session"},
	{".xprofile", "what a session runs at its start"},
	{".xsessionrc", "what a session runs at its start"},
	{".config/autostart", "what a session runs at its start"},
	{".config/systemd", "what runs by itself"},
	{".config/environment.d", "the environment of a session"},
	{".local/bin", "programs"},
	{".gitconfig", "what git runs"},
	{".config/git", "what git runs"},
	{".git", "what git runs, and its history"},
	{".gitattributes", "what git runs on files"},
	{".gitmodules", "what git fetches"},
	{".vimrc", "what an editor runs"},
	{".config/nvim", "what an editor runs"},
	{".emacs", "what an editor runs"},
	{".emacs.d", "what an editor runs"},
	{".vscode", "what an editor runs"},
	{".idea", "what an editor runs"},
	{".github/workflows", "what runs when the change is pushed"},
	{".gitlab-ci.yml", "what runs when the change is pushed"},
	{".claude", "what coding agents run"},
	{".codex", "what coding agents run"},
	{".mcp.json", "what coding agents run"},
	{".cursor", "what coding agents run"},
	{".carrel", "carrel's own files"},
	{".config/carrel", "what carrel tells its agent, and which hosts there are"},
}

// risks lists why a change of the file at a path, which is absolute and clean, needs a second look.
func risks(place string) (all []string) {
	for _, h := range high {
		part := h.path
		hit := place == part || strings.HasPrefix(place, part+"/")
		if !strings.HasPrefix(part, "/") {
			hit = strings.Contains(place+"/", "/"+part+"/")
		}
		if hit {
			all = append(all, h.path+": "+h.why)
		}
	}
	return all
}

// modeRisks lists what a mode gives that the one before did not.
func modeRisks(before, after fs.FileMode) (all []string) {
	added := after &^ before
	if added&0o002 != 0 {
		all = append(all, "everybody may write to it")
	}
	if added&0o111 != 0 {
		all = append(all, "it may be run as a program")
	}
	return all
}
