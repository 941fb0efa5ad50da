package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// dirs are the broker's directories, open. Everything below them is reached by a
// validated name from the descriptor, beneath it and through no symbolic link.
//
//	<data_dir>/           0711 root
//	  broker/             0700 root    ledger, lock, reports/, placed/
//	  homes/              0700 root    <name> 0700 work:work
//	  tmp/                0700 root    <name>/{tmp,var-tmp} 1777 work:work
//	  images/             0700 root    <name>.img 0600, where disk space is limited
//	  retained/           0700 root    <name>.<uid>, homes of destroyed workspaces
//	<runtime_dir>/        0755 root    broker.sock
//	  x/                  0710 root:daemon  <name>.sock 0600 daemon; where the runtime directory is
//	                      the daemon's own, 0500 daemon
//
// homes and tmp are closed to all others, because what a workspace leaves there may be
// set-uid to its users, and nosuid holds inside only.
type dirs struct {
	data, state, reports, placed, homes, tmp, images, retained, runtime, sockets *os.File
	// links is nil where no links are asked for.
	links *os.File
}

// daemons: the runtime directory may be the daemon's own, as nothing of root's is in it.
func openDirs(s Settings, daemons bool) (d *dirs, err error) {
	all := &dirs{}
	defer func() {
		if err != nil {
			all.close()
		}
	}()
	d = all
	sockets, runtime, closed := filepath.Join(s.RuntimeDir, "x"), uint32(0), uint32(0o710)
	if daemons {
		runtime, closed = s.DaemonUID, 0o500
	} else if err := takeOver(sockets, s.DaemonUID); err != nil {
		return nil, err
	}
	for _, x := range []struct {
		to       **os.File
		path     string
		mode     uint32
		uid, gid uint32
		// shared: others may have set mode, as long as they cannot write.
		shared bool
	}{
		{&d.data, s.DataDir, 0o711, 0, 0, true},
		{&d.state, filepath.Join(s.DataDir, "broker"), 0o700, 0, 0, false},
		{&d.reports, filepath.Join(s.DataDir, "broker", "reports"), 0o700, 0, 0, false},
		{&d.placed, filepath.Join(s.DataDir, "broker", "placed"), 0o700, 0, 0, false},
		{&d.homes, s.HomeRoot, 0o700, 0, 0, false},
		{&d.tmp, filepath.Join(s.DataDir, "tmp"), 0o700, 0, 0, false},
		{&d.images, filepath.Join(s.DataDir, "images"), 0o700, 0, 0, false},
		{&d.retained, filepath.Join(s.DataDir, "retained"), 0o700, 0, 0, false},
		{&d.runtime, s.RuntimeDir, 0o755, runtime, 0, true},
		{&d.sockets, sockets, closed, runtime, s.DaemonGID, false},
	} {
		if *x.to, err = ensureDir(x.path, x.mode, x.uid, x.gid, x.shared); err != nil {
			return nil, err
		}
	}
	if s.HomeLinks != "" {
		if d.links, err = ensureDir(s.HomeLinks, 0o755, 0, 0, true); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// takeOver makes root the owner of a directory that belongs to uid, as the sockets' directory does
// where an earlier version made it.
func takeOver(path string, uid uint32) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot use the directory %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Uid == uid && uid != 0 {
		err = errors.Join(unix.Fchmod(fd, 0o700), unix.Fchown(fd, 0, 0))
	}
	if err != nil {
		return fmt.Errorf("cannot take the directory %s over from uid %d: %w", path, uid, err)
	}
	return nil
}

func (d *dirs) close() {
	closeFiles(d.data, d.state, d.reports, d.placed, d.homes, d.tmp, d.images, d.retained, d.runtime, d.sockets, d.links)
}
