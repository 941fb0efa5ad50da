// Command man writes carrel's manual pages from the help of its commands.
//
// It is a module of its own, so that what formats the pages is not linked into carrel.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra/doc"

	"github.com/carrel-dev/carrel/internal/build"
	"github.com/carrel-dev/carrel/internal/cli"
)

func main() {
	dir := flag.String("dir", "bin/man", "the directory to write to; it is made")
	flag.Parse()
	if err := write(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := cli.Command()
	root.DisableAutoGenTag = true // the same commands give the same bytes
	date := time.Unix(0, 0).UTC()
	return doc.GenManTree(root, &doc.GenManHeader{
		Title: "CARREL", Section: "1", Source: "carrel " + build.Version(), Manual: "Carrel", Date: &date,
	}, dir)
}
