package main

import (
	"fmt"
	"time"

	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// times adds the rows of a latency. What failed of ours is an error; a peer that failed
// is noted as missing.
func (b *bench) times(id string, unit time.Duration, ours measure.Series, peers []measure.Series) error {
	return b.rows(id, map[time.Duration]string{time.Millisecond: "ms", time.Microsecond: "µs"}[unit],
		ours, peers, func(s measure.Series) report.Stat {
			all := s.All()
			of := func(q float64) float64 { return float64(measure.Quantile(all, q)) / float64(unit) }
			return report.Stat{Name: s.Name, N: len(all), P50: of(0.5), P99: of(0.99)}
		})
}

// rates adds the rows of a throughput. Its values are those of the rounds, scaled to what
// one operation counts for.
func (b *bench) rates(id, unit string, ours measure.Series, peers []measure.Series) error {
	return b.rows(id, unit, ours, peers, func(s measure.Series) report.Stat {
		return report.Stat{Name: s.Name, N: len(s.Rates), P50: measure.Quantile(s.Rates, 0.5), P99: measure.Quantile(s.Rates, 0.01)}
	})
}

func (b *bench) rows(id, unit string, ours measure.Series, peers []measure.Series, stat func(measure.Series) report.Stat) error {
	if ours.Err != nil {
		return ours.Err
	}
	mine := stat(ours)
	added := false
	for _, p := range peers {
		if p.Err != nil {
			if err := b.ctx.Err(); err != nil {
				return err
			}
			b.Miss(id+" beside "+p.Name, p.Err)
			continue
		}
		other := stat(p)
		all := measure.Ratios(ours, p)
		if len(all) == 0 || other.P50 == 0 {
			return fmt.Errorf("nothing was measured of %s or %s", ours.Name, p.Name)
		}
		b.Add(report.Row{
			ID: id, Peer: p.Name, Unit: unit, Ours: mine, Other: &other,
			Ratio: mine.P50 / other.P50, RatioQ1: measure.Quantile(all, 0.25), RatioQ3: measure.Quantile(all, 0.75),
		})
		added = true
	}
	if !added {
		b.Add(report.Row{ID: id, Unit: unit, Ours: mine})
	}
	return nil
}
