package sandbox

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // the format has it; what is trusted is read from a file that only carrel writes
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf16"

	"golang.org/x/sys/unix"
)

// JavaTrustFile has the authorities of BundleFile as a trust store of Java.
const JavaTrustFile = "/etc/carrel/java-cacerts"

// javaStores are where distributions keep the host's authorities for Java: Debian, Fedora, SUSE, Alpine. Each JDK below
// javaHomes has a file too, which most have as a link to one of these.
var (
	javaStores = []string{
		"/etc/ssl/certs/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts", "/etc/pki/java/cacerts",
		"/var/lib/ca-certificates/java-cacerts",
	}
	javaHomes  = []string{"/usr/lib/jvm", "/opt"}
	javaInHome = []string{"lib/security/cacerts", "jre/lib/security/cacerts"}
)

// maxJavaHomes bounds the directories that are looked at.
const maxJavaHomes = 64

// javaTrust has Java trust what the bundle has: a store is laid over those that JDKs read. A variable could name the store
// instead, JAVA_TOOL_OPTIONS, which Java repeats on stderr at each start.
func javaTrust() error {
	bundle, err := os.ReadFile(at(BundleFile))
	if err != nil {
		return err
	}
	if err := makeFile(at(JavaTrustFile), javaStore(bundle), 0o644); err != nil {
		return err
	}
	places := javaStores
	for _, dir := range javaHomes {
		homes, err := os.ReadDir(at(dir)) // the host's, read-only
		if err != nil {
			continue
		}
		for _, h := range homes[:min(len(homes), maxJavaHomes)] {
			for _, p := range javaInHome {
				places = append(slices.Clip(places), filepath.Join(dir, h.Name(), p))
			}
		}
	}
	root, err := unix.Open(newRoot, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: newRoot, Err: err}
	}
	defer unix.Close(root)
	for _, p := range places {
		if err := layJavaTrust(root, p); err != nil {
			return err
		}
	}
	return nil
}

// layJavaTrust lays the store over a file of the new root, wherever links lead to in it.
func layJavaTrust(root int, path string) error {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(root, path, how)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var there, store unix.Stat_t
	if err := unix.Fstat(fd, &there); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := unix.Lstat(at(JavaTrustFile), &store); err != nil {
		return &os.PathError{Op: "stat", Path: JavaTrustFile, Err: err}
	}
	if there.Mode&unix.S_IFMT != unix.S_IFREG || there.Dev == store.Dev && there.Ino == store.Ino {
		return nil // by another path it has the store already
	}
	tree, err := Clone(unix.AT_FDCWD, at(JavaTrustFile), readOnly)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("cannot mount over %s: %w", path, err)
	}
	return nil
}

// javaPassword is that of cacerts everywhere. It guards nothing: the digest under it tells damaged files.
const javaPassword = "changeit"

// javaStore is a bundle in PEM as a key store of Java's in the format JKS, version 2, as sun.security.provider.JavaKeyStore
// reads it. Every Java reads it, whatever its default type; unlike PKCS#12 it takes no ASN.1 and no library.
//
//	magic, version, count, { tag 2, alias, time in ms, "X.509", length, certificate }, SHA-1
//
// Texts have a length of two bytes before them. A block that is no base64 is left out.
func javaStore(bundle []byte) []byte {
	begin, end := []byte("-----BEGIN CERTIFICATE-----"), []byte("-----END CERTIFICATE-----")
	text := func(b []byte, s string) []byte { return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...) }
	out := binary.BigEndian.AppendUint32(nil, 0xfeedfeed)
	out = binary.BigEndian.AppendUint32(out, 2)
	out = binary.BigEndian.AppendUint32(out, 0)
	count := uint32(0)
	for {
		_, rest, found := bytes.Cut(bundle, begin)
		body, after, whole := bytes.Cut(rest, end)
		if !found || !whole {
			break
		}
		bundle = after
		der, err := base64.StdEncoding.DecodeString(string(bytes.Join(bytes.Fields(body), nil)))
		if err != nil || len(der) == 0 {
			continue
		}
		count++
		out = binary.BigEndian.AppendUint32(out, 2)
		out = text(out, fmt.Sprintf("carrel-%d", count))
		out = binary.BigEndian.AppendUint64(out, 0)
		out = text(out, "X.509")
		out = binary.BigEndian.AppendUint32(out, uint32(len(der)))
		out = append(out, der...)
	}
	binary.BigEndian.PutUint32(out[8:], count)
	sum := sha1.New() //nolint:gosec // as above
	for _, u := range utf16.Encode([]rune(javaPassword)) {
		_, _ = sum.Write([]byte{byte(u >> 8), byte(u)})
	}
	_, _ = sum.Write([]byte("Mighty Aphrodite"))
	_, _ = sum.Write(out)
	return sum.Sum(out)
}
