package memrelease

// Own and Span are for the test.
var Own = own

type Span = span
