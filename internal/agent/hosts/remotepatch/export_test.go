package remotepatch

// Script is what runs on the host.
const Script = script

// Parse takes apart what the script says of files.
func Parse(text []byte, names []string) error {
	_, _, _, err := parse(text, names)
	return err
}
