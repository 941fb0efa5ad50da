package config

// ParseText returns the texts of the settings in a file.
func ParseText(path string, b []byte) (map[string]string, error) {
	found, err := parse(path, b)
	if err != nil {
		return nil, err
	}
	texts := make(map[string]string, len(found))
	for k, v := range found {
		texts[k] = v.text
	}
	return texts, nil
}
