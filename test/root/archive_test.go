package root_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What can be archived can be restored: homes of zeros and holes, which an archive makes small, and of
// odd things beside.
func TestArchivedHomesComeBack(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	d.sh(t, `head -c 300M /dev/zero > zeros
		truncate -s 300M hole; echo end >> hole
		(head -c 16K /dev/urandom; head -c 64M /dev/zero) > mixed; truncate -s 20G mixed
		n=$(printf 'n%.0s' {1..250}); : > "$n"; mkdir links; for i in {1..500}; do ln mixed links/$i; done
		p=.; for i in {1..200}; do p=$p/deep; done; mkdir -p $p; echo bottom > $p/file
		for i in {1..3000}; do : > links/e$i; done
		printf x > $'not\xffutf8\n'; chmod 4751 $'not\xffutf8\n'; mkfifo -m 622 fifo; ln -s "$(printf 't%.0s' {1..4095})" long
		mkdir closed; echo in > closed/file; touch -d @-5.25 closed/file; chmod 500 closed`)
	const list = `{ find . -mindepth 1 -type d -printf '%P %m %T@\0' -o -printf '%P %y %m %s %T@ %n %l\0' | sort -z; sha256sum hole zeros; sha256sum < <(head -c 70M mixed); } | sha256sum`
	before := d.sh(t, list)
	h.carrel(t, "archive", "create", "--live", "--destroy", d.Key)
	if out := h.carrel(t, "ls"); strings.Contains(out, d.Key) {
		t.Errorf("it is there still: %s", out)
	}
	h.carrel(t, "restore", d.Key)
	if after := d.sh(t, list); after != before {
		t.Errorf("the home was %s and is %s", before, after)
	}
	d.sh(t, `[ mixed -ef links/7 ] && [ $(stat -c %b hole) -lt 100 ]`)
}

// A verifier that dies leaves the home as it is, and harms nobody.
func TestAVerifierThatIsKilled(t *testing.T) {
	h := newHostFor(t)
	d, other := h.desk(t), h.desk(t)
	d.sh(t, "echo kept > file; head -c 200M /dev/urandom > ballast")
	done := make(chan result, 1)
	go func() { done <- h.try(nil, "", "archive", "create", "--live", "--destroy", d.Key) }()
	if err := unix.Kill(d.archiver(t, "verify"), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.code == 0 || !strings.Contains(r.err, "home stay") {
		t.Fatalf("%+v", r)
	}
	if out := d.sh(t, "cat file"); out != "kept" {
		t.Errorf("in the home is %q", out)
	}
	if out := h.carrel(t, "archive", "ls", "-o", "json"); strings.Contains(out, d.Name) {
		t.Errorf("there is an archive: %s", out)
	}
	if left, err := filepath.Glob(h.data + "/daemon/archives/*"); err != nil || len(left) != 0 {
		t.Errorf("%v, left behind: %v", err, left)
	}
	h.carrel(t, "archive", "create", "--destroy", other.Key)
	h.carrel(t, "stop", d.Key)
	h.carrel(t, "archive", "create", "--destroy", d.Key)
	h.carrel(t, "restore", d.Key)
	if out := d.sh(t, "cat file"); out != "kept" {
		t.Errorf("restored is %q", out)
	}
	if _, err := os.Stat(d.Home); err == nil {
		t.Errorf("%s is there still", d.Home)
	}
}

// A tenant cannot fill the daemon's disk with archives, neither one after the other nor at once; an
// administrator archives all the same.
func TestATenantsArchivesAreBounded(t *testing.T) {
	h := newHostWith(t, func(string) string {
		return "socket_mode: \"0666\"\nmax_archives_per_owner: 6\narchive_bytes_per_owner: 20MiB\n"
	})
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	tenant := user(t, "crt-shelf")
	const atOnce = 6
	key := func(i int) string { return fmt.Sprint("shelf-", i) }
	for i := range atOnce {
		if r := h.try(tenant, "", "create", key(i)); r.code != 0 {
			t.Fatal(r.err)
		}
		if r := h.try(tenant, "", "exec", key(i), "--", "/bin/sh", "-c", "head -c 6M /dev/urandom > ballast"); r.code != 0 {
			t.Fatal(r.err)
		}
	}
	shelf := func() (n int, size int64) {
		files, err := filepath.Glob(h.data + "/daemon/archives/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			info, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			size += info.Size()
		}
		return len(files), size
	}
	results := make(chan result, atOnce)
	for i := range atOnce {
		go func() { results <- h.try(tenant, "", "archive", "create", key(i)) }()
	}
	made := 0
	for range atOnce {
		switch r := <-results; {
		case r.code == 0:
			made++
		case !strings.Contains(r.err, "archive_bytes_per_owner"):
			t.Errorf("refused with %s", r.err)
		}
	}
	if n, size := shelf(); n != made || n == atOnce || size > 20<<20 {
		t.Errorf("%d were made, %d are there with %d bytes", made, n, size)
	}
	// With little in them it is the number that ends it; what goes makes room.
	small := key(0)
	if r := h.try(tenant, "", "exec", small, "--", "rm", "ballast"); r.code != 0 {
		t.Fatal(r.err)
	}
	for range atOnce - made {
		if r := h.try(tenant, "", "archive", "create", small); r.code != 0 {
			t.Fatal(r.err)
		}
	}
	if r := h.try(tenant, "", "archive", "create", small); r.code == 0 || !strings.Contains(r.err, "max_archives_per_owner") {
		t.Errorf("one too many: %+v", r)
	}
	if r := h.try(tenant, "", "archive", "create", "--file", "-", small); r.code != 0 {
		t.Errorf("into a file: %s", r.err)
	}
	h.carrel(t, "archive", "create", small)
	for range 2 { // the tenant's, of which there are seven now
		if r := h.try(tenant, "", "archive", "rm", small); r.code != 0 {
			t.Fatal(r.err)
		}
	}
	if r := h.try(tenant, "", "archive", "create", "--destroy", small); r.code != 0 {
		t.Error(r.err)
	}
	if out := h.carrel(t, "archive", "ls", "-o", "json"); !strings.Contains(out, `"expires_at": "2`) {
		t.Errorf("it is not said when they go: %s", out)
	}
}
