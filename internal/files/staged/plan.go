package staged

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

// planner makes operations of changes. It reads and changes nothing.
type planner struct {
	ctx          context.Context
	lower, upper folder
	since        time.Time
	base         func(path string) ([]byte, bool)
	own          inodes
	parents      map[string]*parent
	j            *journal
	conflicts    []Conflict
	merged       []string
	bytes        int64
}

// parent is a directory in which something changes.
type parent struct {
	stamp stamp
	old   bool            // it is older than the run
	names map[string]bool // of one that takes names in any case for the same; else nil
}

func (p *planner) conflict(path, why string) {
	p.conflicts = append(p.conflicts, Conflict{path, why})
}

// isBase reports whether what is there is what was there when the run began.
func (p *planner) isBase(s stamp) bool { return s.before(p.since) || p.own.has(s) }

// plan makes operations of the chosen changes. Each tree that is made or removed is one, since one rename does it.
func (p *planner) plan(all []Change, chosen []bool) error {
	for i := 0; i < len(all); {
		c := &all[i]
		end := i + 1
		if c.makesDir() || c.removesDir() || c.Kind == Retype {
			for end < len(all) && isBelow(all[end].Path, c.Path) {
				end++
			}
		}
		if !chosen[i] { // what is below may be chosen by itself
			i++
			continue
		}
		if err := p.ctx.Err(); err != nil {
			return fmt.Errorf("cannot apply the changes: %w", context.Cause(p.ctx))
		}
		if err := p.tree(all[i:end], chosen[i:end]); err != nil {
			return fmt.Errorf("cannot change %q: %w", c.Path, err)
		}
		i = end
	}
	p.openUp()
	slices.SortFunc(p.j.Ops, func(a, b *op) int { return ComparePaths(string(a.Path), string(b.Path)) })
	p.j.names()
	return nil
}

// actions are what kinds come to.
var actions = map[Kind]action{Create: create, Delete: remove, Modify: replace, Mode: replace, Retype: replace, Relink: replace}

// tree makes an operation of a change and of those below it.
func (p *planner) tree(all []Change, chosen []bool) error {
	c := &all[0]
	o := &op{Path: name(c.Path), Do: actions[c.Kind], from: source{p.upper, c.Path}, Base: p.isBase(c.Old.stamp)}
	in, err := p.parent(c.Path)
	if err != nil {
		return err
	}
	o.In = in.old
	if in.names != nil && c.Old.Type != Absent && !in.names[o.base()] {
		p.conflict(c.Path, "its directory has a name that differs in nothing but the case or the form of its letters")
		return nil
	}
	if c.Kind == Mode && c.New.Type == Dir {
		return p.chmod(o, c)
	}
	uid, gid := ownerFor(c, in)
	for i := range all {
		if !chosen[i] {
			continue
		}
		rel := relative(all[i].Path, c.Path)
		if was := &all[i].Old; was.Type != Absent {
			o.Old = append(o.Old, item{Rel: name(rel), Stamp: was.stamp, Target: name(was.Target)})
			p.check(o, &all[i])
		}
		if is := &all[i].New; is.Type != Absent {
			p.bytes += is.Size
			o.nodes = append(o.nodes, newNode(rel, is, uid, gid, c.Old.Type == File && is.Type == File))
			p.vanished(&all[i], in)
		}
	}
	if p.bytes > maxApply {
		return bad("together the files have more than %d bytes; choose fewer", int64(maxApply))
	}
	if len(o.Old) > 0 && !o.Base && c.Kind == Modify {
		return p.merge(o, c)
	}
	p.j.add(o)
	return nil
}

func (o *op) base() string {
	_, base := split(string(o.Path))
	return base
}

func relative(path, top string) string {
	if path == top {
		return ""
	}
	return path[len(top)+1:]
}

// newNode is what an entry of the upper directory comes to: its permissions, and no other bits of its mode.
func newNode(rel string, e *Entry, uid, gid int, keep bool) node {
	n := node{rel: rel, mode: e.stamp.kind() | e.Mode&0o777, target: e.Target, uid: uid, gid: gid}
	if keep {
		n.attrs = oldAttrs
	}
	return n
}

// ownerFor is the owner of what is new: that of what it replaces, or as root that of the directory that it is in.
func ownerFor(c *Change, in *parent) (uid, gid int) {
	switch {
	case c.Old.Type != Absent:
		return int(c.Old.stamp.UID), int(c.Old.stamp.GID)
	case os.Geteuid() == 0:
		return int(in.stamp.UID), int(in.stamp.GID)
	}
	return -1, -1
}

// check notes a conflict if something that goes is not what it was when the run began. Of a directory all that is in it is
// checked; it itself is newer whenever a name in it is.
func (p *planner) check(o *op, c *Change) {
	if c.Old.Type == Dir || p.isBase(c.Old.stamp) || c.Kind == Modify && o.Path == name(c.Path) {
		return
	}
	why := "it was changed after the run began"
	if c.Kind == Delete {
		why = "it was changed after the run began, and the run deleted it"
	}
	p.conflict(c.Path, why)
}

// vanished notes a conflict if the host has deleted a file since the run began that the run changed. The file is not there to
// tell; but its directory is newer, and the caller knows a base of it.
func (p *planner) vanished(c *Change, in *parent) {
	if c.Kind != Create || c.New.Type != File || in.old || p.base == nil {
		return
	}
	if _, ok := p.base(c.Path); ok {
		p.conflict(c.Path, "it was deleted after the run began, and the run changed it")
	}
}

// chmod adds a change of a directory's mode. The other bits of the mode stay.
func (p *planner) chmod(o *op, c *Change) error {
	if !o.Base {
		p.conflict(c.Path, "the directory was changed after the run began, so that its mode may be another one")
		return nil
	}
	o.Do, o.Old = chmod, []item{{Stamp: c.Old.stamp}}
	o.Open, o.Mode = c.Old.Mode, c.New.Mode&0o777|c.Old.Mode&special
	p.j.add(o)
	return nil
}

// openUp has directories that their owner has closed be open during the change. Root needs no such thing.
func (p *planner) openUp() {
	if os.Geteuid() == 0 {
		return
	}
	changed := map[name]*op{}
	for _, o := range p.j.Ops {
		if o.Do == chmod {
			changed[o.Path] = o
		}
	}
	for path, in := range p.parents {
		if path == "" || in.stamp.Mode&0o700 == 0o700 || int(in.stamp.UID) != os.Geteuid() {
			continue
		}
		mode := in.stamp.Mode & 0o7777
		o := changed[name(path)]
		if o == nil {
			o = &op{Path: name(path), Do: chmod, Old: []item{{Stamp: in.stamp}}, Mode: mode}
			p.j.add(o)
		}
		o.Open = mode | 0o700
	}
}

// parent looks at the directory that a path is in.
func (p *planner) parent(path string) (*parent, error) {
	dir, _ := split(path)
	if in := p.parents[dir]; in != nil {
		return in, nil
	}
	d, err := p.lower.sub(dir)
	if err != nil {
		return nil, err
	}
	defer d.close()
	in := &parent{}
	if in.stamp, err = d.self(); err != nil {
		return nil, err
	}
	in.old = p.isBase(in.stamp)
	if foldsCase(d) {
		in.names = map[string]bool{}
		if err := d.each(func(n string) error { in.names[n] = n != hidden; return nil }); err != nil {
			return nil, err
		}
	}
	p.parents[dir] = in
	return in, nil
}

// casefoldFlag is FS_CASEFOLD_FL of linux/fs.h. The file systems take names in any case for the same, always.
const casefoldFlag = 0x40000000

var caseless = []int64{unix.MSDOS_SUPER_MAGIC, unix.EXFAT_SUPER_MAGIC, 0x7366746e /* ntfs3 */, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC}

// foldsCase reports whether a directory takes names in any case for the same.
var foldsCase = func(d folder) bool {
	if flags, err := unix.IoctlGetUint32(d.fd, unix.FS_IOC_GETFLAGS); err == nil && flags&casefoldFlag != 0 {
		return true
	}
	var st unix.Statfs_t
	return unix.Fstatfs(d.fd, &st) == nil && slices.Contains(caseless, int64(st.Type))
}

// hidden is a name that tests have only in another form.
var hidden string

// merge adds a change of a file that the host has changed too, if the two changes go together.
func (p *planner) merge(o *op, c *Change) error {
	const changed = "it was changed after the run began"
	var base []byte
	ok := false
	if p.base != nil {
		base, ok = p.base(c.Path)
	}
	switch {
	case !ok:
		p.conflict(c.Path, changed)
		return nil
	case c.Old.Mode&0o777 != c.New.Mode&0o777:
		p.conflict(c.Path, changed+", and its mode differs")
		return nil
	case max(c.Old.Size, c.New.Size) > patch.MaxSize:
		p.conflict(c.Path, changed+", and is too large to be merged")
		return nil
	}
	ours, err := readAll(p.upper, c.Path)
	if err != nil {
		return err
	}
	theirs, err := readAll(p.lower, c.Path)
	if err != nil {
		return err
	}
	text, err := mergeTexts(p.ctx, base, ours, theirs)
	if err != nil {
		p.conflict(c.Path, changed+", and both changes cannot be merged")
		return nil
	}
	o.nodes[0].content = text
	o.Old[0].Digest = digest(theirs)
	p.merged = append(p.merged, c.Path)
	p.j.add(o)
	return nil
}

// mergeTexts merges what is text.
func mergeTexts(ctx context.Context, base, ours, theirs []byte) ([]byte, error) {
	for _, t := range [][]byte{base, ours, theirs} {
		if bytes.IndexByte(t, 0) >= 0 {
			return nil, stale("one of them is binary")
		}
	}
	return patch.Merge3(ctx, base, ours, theirs)
}

// readAll reads a file that is to be merged.
func readAll(d folder, path string) ([]byte, error) {
	f, err := d.file(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, patch.MaxSize+1))
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
