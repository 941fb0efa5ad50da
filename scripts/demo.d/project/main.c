#include "longest.h"

int main(void)
{
	printf("%zu\n", longest(stdin));
	return 0;
}
