package rootless_test

import (
	"strings"
	"testing"
)

// Files go in and out of a workspace of a user's own carrel, also where executor and commands share one id, and what is
// read-only in a project is so for the client.
func TestOwnFiles(t *testing.T) { eachOwner(t, ownFiles) }

func ownFiles(t *testing.T, u *user) {
	u.must("create", "-v", "project:/workspace", "one")
	u.sh("mkdir -p tree/below && echo text > tree/below/file && ln -s below/file tree/link && chmod 700 tree/below/file")
	u.must("cp", "tree", "one:")
	if got := u.must("exec", "one", "--", "sh", "-c", "cat tree/link; stat -c %a tree/below/file"); got != "text\n700" && got != "text\n700\n" {
		t.Errorf("inside there is %q", got)
	}
	u.must("exec", "one", "--", "sh", "-c", "echo more >> tree/below/file; ln -s /etc/passwd tree/out")
	u.must("cp", "one:tree", "back")
	if r := u.sh("cat back/link; readlink back/out"); r.out != "text\nmore\n/etc/passwd\n" {
		t.Errorf("outside there is %+v", r)
	}
	u.must("cp", "back/link", "one:/workspace/")
	if got := u.must("files", "ls", "one", "/workspace"); !strings.Contains(got, "link") {
		t.Errorf("listed are\n%s", got)
	}
	if r := finish(u.own("files", "write", "one", "/workspace/.git/hooks/pre-commit"), "#!/bin/sh\n"); r.code == 0 {
		t.Errorf("%+v", r)
	}
	if r := u.sh("ls project/.git/hooks; ls -l project/link | cut -c1"); strings.Contains(r.out, "pre-commit\n") || !strings.HasSuffix(r.out, "l\n") {
		t.Errorf("%+v", r)
	}
	u.must("files", "rm", "-r", "one", "tree")
	if r := u.carrel("files", "cat", "one", "tree/below/file"); r.code == 0 || r.out != "" {
		t.Errorf("%+v", r)
	}
}
