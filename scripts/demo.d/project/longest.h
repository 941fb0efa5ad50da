#include <stdio.h>

/* longest returns the length of the longest line of f, without its newline. */
size_t longest(FILE *f);
