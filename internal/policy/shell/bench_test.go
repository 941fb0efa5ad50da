package shell_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

func BenchmarkAnalyze(b *testing.B) {
	for _, line := range []struct{ name, text string }{
		{"plain", `ls -la /var/log/nginx`},
		{"pipe", `journalctl -u nginx --since "1 hour ago" | grep -i error | tail -n 50`},
		{"list", `cd /srv/app && git pull --ff-only && make -j4 2>&1 | tee build.log`},
		{"variables", `dir=/var/lib/app; for f in "$dir"/*.json; do jq -r .name "$f" >> names.txt; done`},
		{"nested", `bash -c 'set -e; cd /tmp && tar -xzf "$1"' _ file.tgz`},
	} {
		b.Run(line.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f := shell.Analyze(line.text, shell.Limits{})
				if len(f.Commands) == 0 {
					b.Fatal("no command")
				}
			}
		})
	}
}
