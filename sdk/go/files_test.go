package carrel_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
)

// Files arrive whole or not at all by every transport, and why a reader failed is the error.
func TestFilesOfAWorkspace(t *testing.T) {
	g := &apitest.Gate{}
	for name, c := range clientsOf(t, g) {
		if _, _, err := c.Create(t.Context(), &carrelv1.CreateRequest{Key: "demo"}); err != nil {
			t.Fatal(err)
		}
		start := &carrelv1.WriteFileStart{Workspace: "demo", Path: "file " + name}
		text := strings.Repeat("text\x00\xff", 200_000)
		if e, err := c.WriteFile(t.Context(), start, strings.NewReader(text)); err != nil || e.GetSize() != int64(len(text)) {
			t.Fatalf("%s: %v, %v", name, e, err)
		}
		gone := errors.New("gone")
		broken := io.MultiReader(strings.NewReader(text[:300_000]), iotest.ErrReader(gone))
		if _, err := c.WriteFile(t.Context(), start, broken); !errors.Is(err, gone) {
			t.Errorf("%s: %v", name, err)
		}
		var out bytes.Buffer
		if e, err := c.ReadFile(t.Context(), &carrelv1.ReadFileRequest{Workspace: "demo", Path: start.GetPath()}, &out); err != nil ||
			e.GetType() != "file" || out.String() != text {
			t.Errorf("%s: %v, %d bytes, %v", name, e, out.Len(), err)
		}
		_, err := c.ReadFile(t.Context(), &carrelv1.ReadFileRequest{Workspace: "demo", Path: "none"}, &out)
		if !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
		unpack := &carrelv1.UnpackFilesStart{Workspace: "demo", Path: "tree " + name}
		if _, err := c.UnpackFiles(t.Context(), unpack, strings.NewReader("a tree")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if all, err := c.ListPatches(t.Context(), "demo"); err != nil || len(all) != 1 || all[0].GetId() != "p-0" || len(all[0].GetFiles()) != 1 {
			t.Errorf("%s: %v, %v", name, all, err)
		}
		if id, err := c.UndoPatch(t.Context(), "demo", "p-0"); err != nil || id != "p-1" {
			t.Errorf("%s: %q, %v", name, id, err)
		}
		for _, x := range [][2]string{{"demo", "p-2"}, {"none", "p-0"}} {
			if _, err := c.UndoPatch(t.Context(), x[0], x[1]); !errdefs.IsNotFound(err) {
				t.Errorf("%s: %q: %v", name, x, err)
			}
		}
		out.Reset()
		req := &carrelv1.PackFilesRequest{Workspace: "demo", Path: unpack.GetPath()}
		if s, err := c.PackFiles(t.Context(), req, &out); err != nil || s == nil || out.String() != "a tree" {
			t.Errorf("%s: %v, %q, %v", name, s, out.String(), err)
		}
	}
}

// A call that the daemon has ended does not wait for what is written, which may never come.
func TestWriteOfASilentReader(t *testing.T) {
	for name, c := range clientsOf(t, &apitest.Gate{}) {
		for what, write := range map[string]func(io.Reader) error{
			"a file": func(r io.Reader) error {
				_, err := c.WriteFile(t.Context(), &carrelv1.WriteFileStart{Workspace: "none", Path: "x"}, r)
				return err
			},
			"a tree": func(r io.Reader) error {
				_, err := c.UnpackFiles(t.Context(), &carrelv1.UnpackFilesStart{Workspace: "none", Path: "x"}, r)
				return err
			},
		} {
			silent, w := io.Pipe()
			ended := make(chan error, 1)
			go func() { ended <- write(silent) }()
			select {
			case err := <-ended:
				if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "none") {
					t.Errorf("%s: %s: %v", name, what, err)
				}
			case <-time.After(5 * time.Second):
				t.Errorf("%s: %s: it waits for its reader", name, what)
			}
			w.Close()
		}
	}
}
