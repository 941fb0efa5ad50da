package patch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// What files are when a change is computed is kept until the change is made, so that it can be merged into files that changed
// meanwhile. Whoever can write to the directory can change what is kept, and gains nothing by it: a change is merged only if
// it has the digest that was approved, which covers the contents. Nothing is merged where nothing was kept.
const (
	keptPrefix = "planned-"
	// keptSize bounds the files of one change, maxKept and keptTotal what is kept of all, and keptTime for how long. Sizes
	// are in bytes.
	keptSize  = 16 << 20
	keptTotal = 64 << 20
	maxKept   = 16
	keptTime  = 24 * time.Hour
)

// kept is one file as it was.
type kept struct {
	Place   string `json:"place"`
	Mode    uint32 `json:"mode"`
	Content []byte `json:"content"`
}

// keptName is what is kept of a change is called: the same for the request that computes it and the one that makes it.
func keptName(in Roots, w Wanted) string {
	b, err := json.Marshal([]any{in.Dir, in.Allow, w.Text, w.Modes}) // a map is written in the order of its keys
	if err != nil {
		panic("patch: texts and numbers are always JSON: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return keptPrefix + hex.EncodeToString(sum[:])
}

// keep keeps what the files are. Where that fails, a file that changes meanwhile is an error.
func (p *Prepared) keep(dir, name string) {
	var all []kept
	total := 0
	for _, f := range p.files {
		if f.change.op != Create {
			all = append(all, kept{f.from.String(), f.old.meta.Mode, f.old.bytes})
			total += len(f.old.bytes)
		}
	}
	b, err := json.Marshal(all)
	if err != nil || total > keptSize || len(all) == 0 || os.MkdirAll(dir, 0o700) != nil {
		return
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	pruneKept(root, len(b), time.Now())
	temp := name + newSuffix
	_ = root.Remove(temp) // what a process left that was killed
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = root.Rename(temp, name)
	}
	if err != nil {
		_ = root.Remove(temp)
	}
}

// pruneKept removes what is too old, and what is too much beside another one of a size: the oldest first.
func pruneKept(root *os.Root, more int, now time.Time) {
	d, err := root.Open(".")
	if err != nil {
		return
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return
	}
	var all []fs.FileInfo
	for _, e := range entries {
		if i, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), keptPrefix) {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	total := int64(more)
	for n, i := range all {
		total += i.Size()
		if now.Sub(i.ModTime()) > keptTime || total > keptTotal*4/3 || n+1 >= maxKept { // as JSON a byte takes 4/3
			_ = root.Remove(i.Name())
		}
	}
}

// forgetKept removes what is kept of a change that was made or not. Where that fails, it is removed with time.
func forgetKept(dir, name string) { _ = os.Remove(path.Join(dir, name)) }

// loadKept reads what is kept of a change.
func loadKept(dir, name string) (map[string]content, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := openFile(root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 2*keptSize))
	if err != nil {
		return nil, err
	}
	var all []kept
	if err := strictjson.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	out := map[string]content{}
	for _, k := range all {
		out[k.Place] = content{bytes: k.Content, meta: meta{Mode: k.Mode}}
	}
	return out, nil
}

// merged is the change that was approved, merged into what the files are now, with the paths of those that changed. why says
// why it cannot be made as it was, and is the error where nothing was kept that has the digest.
func merged(ctx context.Context, dir string, in Roots, p Patch, w Wanted, why error) (m *Prepared, paths []string, err error) {
	old, err := loadKept(dir, keptName(in, w))
	if err != nil {
		return nil, nil, why
	}
	f, err := newFinder(in)
	if err != nil {
		return nil, nil, err
	}
	f.read = func(p place) (content, error) {
		c, ok := old[p.String()]
		if !ok {
			return c, errAbsent
		}
		return c, nil
	}
	f.free = func(place) error { return nil } // Merge looks
	planned, err := f.prepare(ctx, p)
	if err == nil && len(w.Only) > 0 {
		planned, err = planned.Only(w.Only...)
	}
	if err != nil || planned.Digest() != w.Digest {
		return nil, nil, why
	}
	if m, err = planned.Merge(ctx); err != nil {
		return nil, nil, fmt.Errorf("cannot change the files: one of them has changed since the plan was shown: %w", err)
	}
	if paths = m.moved(planned); len(paths) == 0 { // something else differs, such as its mode
		return nil, nil, why
	}
	return m, paths, nil
}

// moved are the files that are not what they were when a change was planned, of which p is what was merged.
func (p *Prepared) moved(planned *Prepared) (paths []string) {
	for i, f := range p.files {
		if f.file().Before != planned.files[i].file().Before {
			paths = append(paths, f.name())
		}
	}
	return paths
}
