package tarfmt

import (
	"bytes"
	"strconv"
	"strings"
)

// eachRecord splits an extended header into its records, "length key=value\n".
func eachRecord(data []byte, record func(key string, value []byte) error) error {
	for len(data) > 0 {
		space := bytes.IndexByte(data[:min(len(data), 8)], ' ')
		if space < 1 {
			return damaged("a record of an extended header has no length")
		}
		n, err := decimal(string(data[:space]))
		if err != nil || n <= int64(space)+2 || n > int64(len(data)) || data[n-1] != '\n' {
			return damaged("a record of an extended header has a wrong length")
		}
		key, value, ok := bytes.Cut(data[space+1:n-1], []byte("="))
		if !ok || len(key) == 0 || bytes.IndexByte(key, 0) >= 0 {
			return damaged("a record of an extended header has no keyword")
		}
		if err := record(string(key), value); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// record applies one record to o and ignores unknown keywords. An empty value removes the
// record, and the last of several records with one keyword counts.
func (r *Reader) record(o *overrides, key string, value []byte) (err error) {
	v := string(value)
	switch key {
	case "path":
		o.name, o.hasName = v, v != ""
	case "linkpath":
		o.target, o.hasTarget = v, v != ""
	case "size":
		o.hasSize = true
		o.size, err = decimal(v)
	case "uid":
		o.hasUID = true
		o.uid, err = decimal(v)
	case "gid":
		o.hasGID = true
		o.gid, err = decimal(v)
	case "mtime":
		o.hasTime = true
		o.sec, o.nsec, err = parseTime(v)
	case "GNU.sparse.major":
		o.major = v
	case "GNU.sparse.minor":
		o.minor = v
	case "GNU.sparse.name":
		o.sparseName = v
	case "GNU.sparse.realsize":
		o.hasRealSize = true
		o.realSize, err = decimal(v)
	default:
		if strings.HasPrefix(key, "GNU.sparse.") {
			return damaged("a sparse file is not in GNU's form 1.0")
		}
		if name, ok := strings.CutPrefix(key, xattrPrefix); ok {
			return r.xattr(o, name, value)
		}
	}
	return err
}

// xattrUnescape reads GNU tar's escapes; one pass, so that "%253D" is "%3D".
var xattrUnescape = strings.NewReplacer("%25", "%", "%3D", "=")

func (r *Reader) xattr(o *overrides, name string, value []byte) error {
	name = xattrUnescape.Replace(name)
	total := len(name) + len(value)
	for _, x := range o.xattrs {
		total += len(x.Name) + len(x.Value)
	}
	// The number is bounded too: each attribute costs a system call, however short it is.
	if total > r.limits.Xattr || len(o.xattrs) >= MaxXattrs {
		return over("bytes of extended attributes", int64(r.limits.Xattr))
	}
	o.xattrs = append(o.xattrs, Xattr{Name: name, Value: bytes.Clone(value)})
	return nil
}

// decimal reads a number of digits only: no sign, no space.
func decimal(s string) (int64, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, damaged("a number in an extended header has other characters than digits")
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, damaged("a number in an extended header is too large")
	}
	return n, nil
}

// parseTime reads seconds with a fraction, and rounds down to nanoseconds.
func parseTime(s string) (sec, nsec int64, err error) {
	digits, negative := strings.CutPrefix(s, "-")
	whole, frac, _ := strings.Cut(digits, ".")
	if sec, err = decimal(whole); err != nil {
		return 0, 0, err
	}
	if strings.Trim(frac, "0123456789") != "" {
		return 0, 0, damaged("a time in an extended header is not a number")
	}
	nine := (frac + "000000000")[:9]
	if nsec, err = decimal(nine); err != nil {
		return 0, 0, err
	}
	if !negative {
		return sec, nsec, nil
	}
	if len(frac) > 9 && strings.Trim(frac[9:], "0") != "" {
		nsec++
	}
	if nsec > 0 {
		sec, nsec = sec+1, 1e9-nsec
	}
	return -sec, nsec, nil
}
