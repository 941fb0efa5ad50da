package timearg_test

import (
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/cli/timearg"
)

func TestParse(t *testing.T) {
	zone := time.FixedZone("X", 2*3600)
	now := time.Date(2026, 3, 1, 1, 30, 0, 0, zone)
	for text, want := range map[string]string{
		"2026-01-31T15:04:05Z": "2026-01-31T15:04:05Z", "2026-01-31": "2026-01-31T00:00:00+02:00",
		"2026-01-31 15:04":    "2026-01-31T15:04:00+02:00",
		"2026-01-31T15:04:05": "2026-01-31T15:04:05+02:00", "now": "2026-03-01T01:30:00+02:00", "today": "2026-03-01T00:00:00+02:00",
		"Yesterday": "2026-02-28T00:00:00+02:00", "90m": "2026-03-01T00:00:00+02:00",
		"1d": "2026-02-28T01:30:00+02:00", "2h ago": "2026-02-28T23:30:00+02:00",
	} {
		if got, err := timearg.Parse(text, now); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%q: %v, %v, not %s", text, got.Format(time.RFC3339), err, want)
		}
	}
	for _, bad := range []string{"", "tomorrow", "-1h", "31.01.2026", "1960-01-01", "99999999d", "2026-02-30", "d"} {
		if got, err := timearg.Parse(bad, now); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
