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

// The name of a full file of the log consists of the log's name and the numbers of the file's
// first and last record: audit-000000000001-000000004096.jsonl.
type fullFile struct {
	path        string
	first, last int64
}

// fullName returns the path of the full file with these records of the log at path.
func fullName(path string, first, last int64) string {
	ext := filepath.Ext(path)
	return fmt.Sprintf("%s-%012d-%012d%s", strings.TrimSuffix(path, ext), first, last, ext)
}

// fullFiles lists the full files of the log at path, the oldest first.
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
