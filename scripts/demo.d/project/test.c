#include <string.h>

#include "longest.h"

static int failed;

static void expect(const char *text, size_t want)
{
	char buf[64];
	strcpy(buf, text);
	FILE *f = *text ? fmemopen(buf, strlen(buf), "r") : fopen("/dev/null", "r");
	size_t got = longest(f);
	fclose(f);
	if (got != want) {
		fprintf(stderr, "longest(\"%s\") is %zu, want %zu\n", text, got, want);
		failed = 1;
	}
}

int main(void)
{
	expect("", 0);
	expect("\n\n", 0);
	expect("one", 3);
	expect("one\nthree\ntwo\n", 5);
	expect("first\nno newline at the end", 21);
	return failed;
}
