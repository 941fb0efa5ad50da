package gitdir

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// moves is what becomes of the changes that a workspace made to refs.
type moves struct {
	// moved are branches that the host's become equal to.
	moved []change
	// apart are those that stay below refs/carrel/NAME, each with its reason.
	apart []apart
	// why is set if none moves after all.
	why string
	// head is the branch that the workspace ended on, if it is another one.
	head string
}

type apart struct {
	change

	why string
}

// judge decides which branches of the host move: those that the workspace was on, and new ones whose names mean nothing
// to the host yet. A name that means something is one that a person types and trusts.
func (r *Repo) judge(ctx context.Context, own *os.Root, list []change, now refs) (m moves, err error) {
	on, err := visited(own, r.before["HEAD"], now["HEAD"])
	if err != nil {
		return m, err
	}
	var host refs
	for _, c := range list {
		short, branch := strings.CutPrefix(c.name, "refs/heads/")
		var why string
		switch {
		case !branch:
		case c.before != "" && !on[c.name]:
			why = "it was not checked out inside"
		case c.before == "":
			if host == nil {
				if host, err = r.hostRefs(ctx); err != nil {
					return m, err
				}
			}
			why = r.shadows(short, host)
		}
		if branch && why == "" {
			m.moved = append(m.moved, c)
		} else {
			m.apart = append(m.apart, apart{c, why})
		}
	}
	if branch, symbolic := strings.CutPrefix(now["HEAD"], "ref: refs/heads/"); symbolic && now["HEAD"] != r.before["HEAD"] {
		m.head = branch
	}
	return m, nil
}

// maxLog is how much of the log of HEAD is read, in bytes.
const maxLog = 4 << 20

// visited are the branches that HEAD was on, by its log. Who writes a false log has a branch moved that it could have checked out.
func visited(own *os.Root, heads ...string) (map[string]bool, error) {
	on := map[string]bool{}
	for _, h := range heads {
		if name, symbolic := strings.CutPrefix(h, "ref: "); symbolic {
			on[name] = true
		}
	}
	log, err := readFile(own, "logs/HEAD", maxLog)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(log)) {
		_, said, _ := strings.Cut(line, "\tcheckout: moving from ")
		from, to, ok := strings.Cut(strings.TrimSpace(said), " to ")
		if ok {
			on["refs/heads/"+from], on["refs/heads/"+to] = true, true
		}
	}
	return on, nil
}

var (
	// A commit as git abbreviates it, or git describe names it (gitrevisions(7)).
	commitish = compiled(`^([0-9a-fA-F]{4,40}|.*-g[0-9a-fA-F]{4,})$`)
	// A name that git keeps beside refs: HEAD, FETCH_HEAD, AUTO_MERGE.
	pseudo = compiled(`^[A-Z_]+$`)
)

// namespaces are the first parts of a name that git looks up below refs before it looks among the branches.
var namespaces = []string{"refs", "heads", "tags", "remotes", "notes", "stash", "carrel", "replace", "bisect", "worktree", "rewritten"}

// shadows says what else a name of a new branch means on the host, or "".
func (r *Repo) shadows(short string, host refs) string {
	first, _, _ := strings.Cut(short, "/")
	switch {
	case slices.Contains(namespaces, first):
		return first + "/ has a meaning of its own in git"
	case commitish().MatchString(short):
		return "it reads like a commit"
	case pseudo().MatchString(short):
		return "git has such names for itself"
	}
	if _, err := os.Lstat(filepath.Join(r.HostGit(), short)); err == nil {
		return "git has a file of that name"
	}
	for _, name := range sortedNames(host) {
		kind, rest, _ := strings.Cut(strings.TrimPrefix(name, "refs/"), "/")
		remote, branch, _ := strings.Cut(rest, "/")
		switch {
		case kind == "carrel":
		case kind == "remotes" && (strings.EqualFold(remote, first) || strings.EqualFold(branch, short)):
			return "the remote " + remote + " has that name"
		case strings.EqualFold(rest, short) || name == "refs/"+short:
			return fmt.Sprintf("%s is there already", name)
		}
	}
	return ""
}

func sortedNames(all refs) []string {
	names := make([]string, 0, len(all))
	for n := range all {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// told is how many refs are named of each kind.
const told = 8

// tell says what moved, and what stays below refs/carrel.
func (r *Repo) tell(m moves) (notes []string) {
	note := func(format string, a ...any) { notes = append(notes, r.Work+": "+fmt.Sprintf(format, a...)) }
	switch {
	case m.why != "":
		note("its branches stay where they were, because %s; what was committed is below %s: see git log --all", m.why, r.under())
		return notes
	case len(m.moved) > 0:
		var all []string
		for _, c := range m.moved {
			short := strings.TrimPrefix(c.name, "refs/heads/")
			if c.before == "" {
				all = append(all, fmt.Sprintf("%s is new at %.9s", short, c.now))
			} else {
				all = append(all, fmt.Sprintf("%s moved from %.9s to %.9s", short, c.before, c.now))
			}
		}
		note("%s", some(all))
	}
	if len(m.apart) > 0 {
		var all []string
		for _, a := range m.apart {
			name := strings.TrimPrefix(strings.TrimPrefix(a.name, "refs/"), "heads/")
			if a.why != "" {
				name += " (" + a.why + ")"
			}
			all = append(all, name)
		}
		note("kept below %s, and not taken over: %s; git for-each-ref %s shows them", r.under(), some(all), r.under())
	}
	if m.head != "" {
		note("the command switched to the branch %s; %s is still checked out here, and the files are as it left them; "+
			"git symbolic-ref HEAD refs/heads/%s && git reset -q switches too", m.head, r.checkedOut(), m.head)
	}
	return notes
}

func (r *Repo) checkedOut() string {
	name, symbolic := strings.CutPrefix(r.before["HEAD"], "ref: refs/heads/")
	if !symbolic {
		return "no branch"
	}
	return name
}

// some joins the first few.
func some(all []string) string {
	more := ""
	if n := len(all) - told; n > 0 {
		all, more = all[:told], fmt.Sprintf(", and %d more", n)
	}
	return cmp.Or(strings.Join(all, ", ")+more, "nothing")
}
