package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
)

// Peek reads values that SetMeta kept from a database that nobody has open, and its write-ahead log, nil if it has none.
// It works on copies, so it changes neither. Names without a value are missing in the result.
//
// It reads what the daemon wrote with all of SQLite: a process with more rights than the daemon must not call it.
func Peek(ctx context.Context, db, wal io.Reader, names ...string) (values map[string]string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot look into the database: %w", err)
		}
	}()
	dir, err := os.MkdirTemp("", "carrel-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "copy.db")
	for to, from := range map[string]io.Reader{path: db, path + "-wal": wal} {
		if from == nil {
			continue
		}
		if err := copyTo(to, from); err != nil {
			return nil, err
		}
	}
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{"_pragma": {"locking_mode(EXCLUSIVE)", "query_only(1)"}}.Encode()}
	s, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	s.SetMaxOpenConns(1)
	values = map[string]string{}
	for _, name := range names {
		var v string
		switch err := s.QueryRowContext(ctx, `SELECT value FROM meta WHERE name = ?`, name).Scan(&v); {
		case err == nil:
			values[name] = v
		case !errors.Is(err, sql.ErrNoRows):
			return nil, err
		}
	}
	return values, nil
}

func copyTo(path string, from io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
