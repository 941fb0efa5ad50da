package machine

// ModuleFiles and Newc are for the tests.
var ModuleFiles = moduleFiles

// Newc is an archive with one file.
func Newc(name string, b []byte) []byte {
	var a archive
	a.file(name, 0o644, b)
	return a.bytes()
}
