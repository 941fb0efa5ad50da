package probe

// Subordinate is what doctor says of a user's ids in these files.
var Subordinate = subordinate
