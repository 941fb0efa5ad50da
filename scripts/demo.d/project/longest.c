#include "longest.h"

size_t longest(FILE *f)
{
	size_t most = 0, n = 0;
	for (int c; (c = getc(f)) != EOF;) {
		if (c == '\n') {
			n = 0;
			continue;
		}
		if (++n > most)
			most = n;
	}
	return most;
}
