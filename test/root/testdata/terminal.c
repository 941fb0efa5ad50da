/* Putting words into a terminal, or taking one: on standard input, if it is one, on
 * /dev/tty, and on a terminal of the program's own making. */
#include "attack.h"
#include <linux/tiocl.h>
#include <sys/ioctl.h>

static void try_all(const char *name, int fd)
{
	char what[80];
	char letter = 'x', sub[2] = { TIOCL_GETFGCONSOLE, 0 };
	static const struct { const char *name; unsigned long request; } requests[] = {
		{ "TIOCSTI", TIOCSTI }, { "TIOCSTI with bit 32", TIOCSTI | 1UL << 32 }, { "TIOCSTI with bit 63", TIOCSTI | 1UL << 63 },
		{ "TIOCLINUX", TIOCLINUX }, { "TIOCLINUX with bit 32", TIOCLINUX | 1UL << 32 },
	};
	for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
		snprintf(what, sizeof what, "%s on %s", requests[i].name, name);
		TRY(what, syscall(SYS_ioctl, fd, requests[i].request, requests[i].request & 8 ? (void *)sub : (void *)&letter));
	}
	snprintf(what, sizeof what, "TIOCCONS on %s", name);
	TRY(what, ioctl(fd, TIOCCONS, 0));
}

static int own_terminal(void)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY);
	if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
		return -1;
	return open(ptsname(master), O_RDWR | O_NOCTTY);
}

int main(void)
{
	if (isatty(0))
		try_all("standard input", 0);
	int fd = open("/dev/tty", O_RDWR | O_NOCTTY);
	if (fd >= 0)
		try_all("/dev/tty", fd);
	fd = own_terminal();
	if (fd >= 0)
		try_all("a terminal of its own", fd);
	TRY("open /dev/console", open("/dev/console", O_RDWR | O_NOCTTY));
	TRY("open /dev/tty0", open("/dev/tty0", O_RDWR | O_NOCTTY));
	TRY("open /dev/vcs", open("/dev/vcs", O_RDWR));
	return 0;
}
