package audit

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A full file of the log is named after the one that is written to, and the first and the
// last record in it, as audit-000000000001-000000004096.jsonl.
type fullFile struct {
	path        string
	first, last int64
}

// fullName is the name of the full file of the log at path with these records.
func fullName(path string, first, last int64) string {
	ext := filepath.Ext(path)
	return fmt.Sprintf("%s-%012d-%012d%s", strings.TrimSuffix(path, ext), first, last, ext)
}

// fullFiles lists them, the oldest first.
func fullFiles(path string) ([]fullFile, error) {
	ext := filepath.Ext(path)
	stem := strings.TrimSuffix(filepath.Base(path), ext)
	form := regexp.MustCompile("^" + regexp.QuoteMeta(stem) + `-([0-9]{12,18})-([0-9]{12,18})` + regexp.QuoteMeta(ext) + "$")
	list, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("cannot list the files of the audit log: %w", err)
	}
	var full []fullFile
	for _, e := range list {
		m := form.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		first, _ := strconv.ParseInt(m[1], 10, 64) // at most 18 digits
		last, _ := strconv.ParseInt(m[2], 10, 64)
		full = append(full, fullFile{filepath.Join(filepath.Dir(path), e.Name()), first, last})
	}
	slices.SortFunc(full, func(a, b fullFile) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last)) })
	return full, nil
}
