package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// mount is a directory that is asked for. A staged one gets its stage when the workspace is made.
type mount struct {
	carrel.Mount

	staged bool
}

// parseVolume reads SRC:DST[:ro], or :root. SRC may contain colons, DST may not.
func parseVolume(s string) (mount, error) {
	rest, ro := strings.CutSuffix(s, ":ro")
	rest, root := strings.CutSuffix(rest, ":root")
	rest, staged := strings.CutSuffix(rest, ":staged")
	if !ro && !root && !staged {
		rest, _ = strings.CutSuffix(rest, ":rw")
	}
	i := strings.LastIndexByte(rest, ':')
	if i <= 0 || i == len(rest)-1 {
		return mount{}, fmt.Errorf("cannot use %q as a mount: write it SRC:DST or SRC:DST:ro, as in .:/workspace: %w",
			s, errdefs.ErrInvalidArgument)
	}
	src, err := filepath.Abs(rest[:i])
	if err != nil {
		return mount{}, fmt.Errorf("cannot use %q as a mount: %w", s, err)
	}
	return mount{carrel.Mount{Source: src, Destination: rest[i+1:], ReadOnly: ro, AsRoot: root}, staged}, nil
}

// volumeFlag adds -v.
func volumeFlag(c *cobra.Command, volumes *[]string) {
	c.Flags().StringArrayVarP(volumes, "volume", "v", nil,
		"mount a directory, as `SRC:DST[:ro]`; may be repeated. SRC:DST:staged mounts a copy, whose changes carrel apply makes. "+
			"SRC:DST:root, by root, lets commands write files of root there")
	_ = c.RegisterFlagCompletionFunc("volume", completeVolume) // the flag is there
}

func parseVolumes(all []string) ([]mount, error) {
	var mounts []mount
	for _, s := range all {
		m, err := parseVolume(s)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// completeVolume completes a directory before the first colon, and the usual mount points after
// it.
func completeVolume(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	src, dst, ok := strings.Cut(typed, ":")
	if !ok {
		return nil, cobra.ShellCompDirectiveFilterDirs | cobra.ShellCompDirectiveNoSpace
	}
	if strings.Contains(dst, ":") {
		at := typed[:strings.LastIndexByte(typed, ':')]
		return []string{at + ":ro", at + ":staged"}, cobra.ShellCompDirectiveNoFileComp
	}
	name := filepath.Base(src)
	if abs, err := filepath.Abs(src); err == nil {
		name = filepath.Base(abs)
	}
	return []string{src + ":/workspace", src + ":~/" + name, src + ":/mnt/" + name, src + ":/srv/" + name},
		cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}
