// Package wholefile puts a file of the caller's own in the place of another one, whole or not at all.
//
// It must not be used in a directory that others can write.
package wholefile

import (
	"errors"
	"os"
	"path/filepath"
)

// Prefix is what the names of files begin with that a crash may leave in the directory.
const Prefix = ".new-"

// Put writes a file of mode 0600 and puts it in the place of path. After an error, or a crash before the end, what was there stays.
func Put(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), Prefix+"*") // with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
