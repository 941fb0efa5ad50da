// Package timearg reads times and durations as people type them.
//
// It must not look at the clock: what is relative is relative to a moment that it is handed.
package timearg

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// ParseDays reads a duration that may also be a number of days, up to a hundred years.
func ParseDays(text string) (time.Duration, error) {
	days, ok := strings.CutSuffix(text, "d")
	if !ok {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseFloat(days, 64)
	if err == nil && !(n >= 0 && n <= 36500) {
		err = strconv.ErrRange
	}
	return time.Duration(n * float64(24*time.Hour)), err
}

// layouts are the forms of a time. Those without a zone are in that of the person.
var layouts = []string{
	time.RFC3339, time.DateOnly, "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02T15:04:05", time.DateTime,
}

// Parse reads a time: as of RFC 3339, a date with or without a time of day in the zone of now, how long ago, now, today or yesterday,
// which are the beginnings of those days.
func Parse(text string, now time.Time) (time.Time, error) {
	today := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	switch strings.ToLower(text) {
	case "now":
		return now, nil
	case "today":
		return today, nil
	case "yesterday":
		return today.AddDate(0, 0, -1), nil
	}
	if d, err := ParseDays(strings.TrimSuffix(text, " ago")); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, l := range layouts {
		if at, err := time.ParseInLocation(l, text, now.Location()); err == nil && at.Unix() >= 0 {
			return at, nil
		}
	}
	return time.Time{}, errors.New("it is no time: give one as 2026-11-22T10:00:00Z, 2026-11-22, yesterday, or how long ago as 90m or 7d")
}
