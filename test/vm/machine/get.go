package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// ErrCannotHave says that something a guest needs cannot be had on this host, so that
// nothing can be proved here.
var ErrCannotHave = errors.New("cannot have a guest on this host")

func cannotHave(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCannotHave, fmt.Errorf(format, args...))
}

const (
	qemu          = "qemu-system-x86_64"
	qemuPackage   = "qemu-system-x86"
	kernelPackage = "linux-image-cloud-amd64"
)

// Ready reports an error if this host is not one that guests are made for.
func Ready() error {
	switch {
	case runtime.GOOS != "linux" || runtime.GOARCH != "amd64":
		return cannotHave("it is %s/%s, and the guest is made for linux/amd64", runtime.GOOS, runtime.GOARCH)
	case os.Geteuid() != 0:
		return errors.New("cannot make the guest's disk: its files belong to root; run this as root")
	}
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb", "dpkg-query", "mke2fs", "ldconfig"} {
		if _, err := exec.LookPath(tool); err != nil {
			return cannotHave("it has no %s; the guest is made on Debian, with apt and e2fsprogs", tool)
		}
	}
	return nil
}

// GetQEMU returns the emulator's path; if there is none it installs the package.
func GetQEMU(ctx context.Context, say func(string)) (string, error) {
	if path, err := exec.LookPath(qemu); err == nil {
		return path, nil
	}
	say("installing " + qemuPackage + " with apt-get")
	install := func() error {
		_, err := output(ctx, "apt-get", "install", "-y", "--no-install-recommends", qemuPackage)
		return err
	}
	if err := install(); err != nil {
		// A fresh host has no lists of packages yet.
		if err := aptUpdate(ctx); err != nil {
			return "", cannotHave("%s is not installed and apt-get cannot update: %w", qemuPackage, err)
		}
		if err := install(); err != nil {
			return "", cannotHave("%s cannot be installed: %w", qemuPackage, err)
		}
	}
	path, err := exec.LookPath(qemu)
	if err != nil {
		return "", cannotHave("%w", err)
	}
	return path, nil
}

// Kernel is an unpacked kernel package.
type Kernel struct {
	Image   string // the bzImage
	Modules string // the directory lib/modules/VERSION
	Name    string // of the package's file, version included
}

// GetKernel returns the kernel that apt offers, from the cache at dir or downloaded and
// unpacked into it. If apt offers none, a kernel of the cache serves.
func GetKernel(ctx context.Context, dir string, say func(string)) (Kernel, error) {
	pkg, file, err := offered(ctx)
	if err != nil {
		if aptUpdate(ctx) == nil {
			pkg, file, err = offered(ctx)
		}
	}
	if err != nil {
		old, _ := filepath.Glob(filepath.Join(dir, "linux-image-*"))
		slices.Sort(old)
		for _, o := range slices.Backward(old) {
			if k, err := openKernel(o); err == nil {
				say("apt offers no kernel; using " + k.Name + " of the cache")
				return k, nil
			}
		}
		return Kernel{}, cannotHave("apt offers no %s, and %s holds none: %w", kernelPackage, dir, err)
	}
	at := filepath.Join(dir, strings.TrimSuffix(file, ".deb"))
	if k, err := openKernel(at); err == nil {
		return k, nil
	}
	say("downloading " + file)
	if err := unpack(ctx, at, pkg); err != nil {
		return Kernel{}, err
	}
	return openKernel(at)
}

// rpmPackages is Debian's rpm with the libraries that few hosts have.
var rpmPackages = []string{"rpm", "rpm-common", "librpm9", "librpmio9", "libpopt0", "liblua5.3-0"}

// GetRPM returns a directory with rpm unpacked, in the cache at dir.
func GetRPM(ctx context.Context, dir string, say func(string)) (string, error) {
	at := filepath.Join(dir, "rpm")
	if _, err := os.Stat(at); err == nil {
		return at, nil
	}
	say("downloading rpm")
	return at, unpack(ctx, at, rpmPackages...)
}

// unpack downloads packages and unpacks them into one directory, which is there only when it is whole.
func unpack(ctx context.Context, at string, pkgs ...string) error {
	dir := filepath.Dir(at)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(dir, "unpack-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	args := append([]string{"download", "-o", "APT::Sandbox::User=root"}, pkgs...)
	get := exec.CommandContext(ctx, "apt-get", args...)
	get.Dir = tmp
	if b, err := get.CombinedOutput(); err != nil {
		return cannotHave("%s cannot be downloaded: %w: %s", strings.Join(pkgs, " "), err, bytes.TrimSpace(b))
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if len(debs) != len(pkgs) {
		return fmt.Errorf("cannot find what apt-get downloaded in %s: %v", tmp, debs)
	}
	for _, deb := range debs {
		if _, err := output(ctx, "dpkg-deb", "-x", deb, filepath.Join(tmp, "tree")); err != nil {
			return fmt.Errorf("cannot unpack %s: %w", deb, err)
		}
	}
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	return os.Rename(filepath.Join(tmp, "tree"), at)
}

// offered asks apt for the package behind the meta package, and its file's name.
func offered(ctx context.Context) (pkg, file string, err error) {
	out, err := output(ctx, "apt-cache", "depends", kernelPackage)
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(out) {
		if d, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			pkg = "linux-image-" + d
		}
	}
	if pkg == "" {
		return "", "", fmt.Errorf("apt-cache depends %s names no kernel", kernelPackage)
	}
	// 'URI' FILE SIZE HASH
	out, err = output(ctx, "apt-get", "download", "--print-uris", pkg)
	if err != nil {
		return "", "", err
	}
	f := strings.Fields(out)
	if len(f) < 3 || !strings.HasSuffix(f[1], ".deb") || f[1] != filepath.Base(f[1]) {
		return "", "", fmt.Errorf("apt-get download --print-uris answers %q", out)
	}
	return pkg, f[1], nil
}

func openKernel(at string) (Kernel, error) {
	images, _ := filepath.Glob(filepath.Join(at, "boot", "vmlinuz-*"))
	modules, _ := filepath.Glob(filepath.Join(at, "lib", "modules", "*"))
	if len(images) != 1 || len(modules) != 1 {
		return Kernel{}, fmt.Errorf("cannot find one kernel in %s", at)
	}
	return Kernel{Image: images[0], Modules: modules[0], Name: filepath.Base(at)}, nil
}

// updateTimeout is for a host whose network swallows what it sends.
const updateTimeout = time.Minute

func aptUpdate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	_, err := output(ctx, "apt-get", "update")
	return err
}

// output runs a tool and returns its stdout; the error carries its stderr.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
