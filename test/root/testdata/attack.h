/*
 * What the attack programs share. Each attempt prints one line:
 *
 *	REACHED what result     it worked
 *	denied what ERRNO       it was refused as a boundary refuses
 *	unclear what ERRNO      it failed otherwise: the attempt itself may be wrong
 *
 * An attempt runs in a child of its own, so that none changes the others and one that
 * does not return is ended. The tests run the same programs where they succeed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static int is_refusal(int e)
{
	static const int refusals[] = {
		EPERM, EACCES, ENOSYS, ENOSPC, EROFS, ENOENT, ESRCH, ENXIO, ENODEV, EXDEV,
		EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT, ECONNREFUSED, ENETUNREACH, EHOSTUNREACH,
	};
	for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
		if (refusals[i] == e)
			return 1;
	return 0;
}

static void report(const char *what, long r, int e)
{
	if (r >= 0)
		printf("REACHED %s %ld\n", what, r);
	else
		printf("%s %s %s\n", is_refusal(e) ? "denied" : "unclear", what, strerrorname_np(e));
	fflush(stdout);
}

/* begin forks; in the child it is true. */
static int begin(void)
{
	fflush(stdout);
	pid_t p = fork();
	if (p < 0) {
		perror("fork");
		exit(2);
	}
	if (p == 0) {
		alarm(5);
		return 1;
	}
	int st;
	while (waitpid(p, &st, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(st))
		printf("%s the attempt was ended by SIG%s\n", WTERMSIG(st) == SIGSYS ? "denied" : "unclear", sigabbrev_np(WTERMSIG(st)));
	return 0;
}

/* TRY makes one attempt: an expression that is negative and sets errno when refused. */
#define TRY(what, expr)                  \
	do {                             \
		if (begin()) {           \
			errno = 0;       \
			long r_ = (long)(expr); \
			report(what, r_, errno); \
			_exit(0);        \
		}                        \
	} while (0)
