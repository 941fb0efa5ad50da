// Reads a file and opens a socket through a ring of io_uring, with system calls alone, as
// liburing does, and says what came of each.
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OP_SOCKET 45 // IORING_OP_SOCKET, Linux 5.19
#define AF_VSOCK_ 40

static struct io_uring_params p;
static int ring;
static char *sq, *cq;
static struct io_uring_sqe *sqes;

static int submit(struct io_uring_sqe e) {
	unsigned *tail = (unsigned *)(sq + p.sq_off.tail), *mask = (unsigned *)(sq + p.sq_off.ring_mask);
	unsigned *head = (unsigned *)(cq + p.cq_off.head), *cmask = (unsigned *)(cq + p.cq_off.ring_mask);
	unsigned i = *tail & *mask;
	sqes[i] = e;
	((unsigned *)(sq + p.sq_off.array))[i] = i;
	atomic_store((_Atomic unsigned *)tail, *tail + 1);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		return -errno;
	int res = ((struct io_uring_cqe *)(cq + p.cq_off.cqes))[*head & *cmask].res;
	atomic_store((_Atomic unsigned *)head, *head + 1);
	return res;
}

int main(int argc, char **argv) {
	ring = syscall(SYS_io_uring_setup, 4, &p);
	if (ring < 0) {
		printf("io_uring_setup: %s\n", strerror(errno));
		return 0;
	}
	sq = mmap(0, p.sq_off.array + p.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	cq = mmap(0, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	sqes = mmap(0, p.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	if (sq == MAP_FAILED || cq == MAP_FAILED || sqes == MAP_FAILED)
		return 1;
	char b[64] = {0};
	int fd = open(argv[1], O_RDONLY);
	int n = submit((struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = fd, .addr = (unsigned long)b, .len = sizeof b - 1});
	printf("read: %d %s\n", n, b);
	// What the ring must not reach either: files that mounts, modes and Landlock keep.
	const char *kept[] = {"/usr/ring", "/etc/passwd", "/proc/1/mem", "/run/.landlock"};
	for (int i = 0; i < 4; i++) {
		int r = submit((struct io_uring_sqe){.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (unsigned long)kept[i], .open_flags = O_WRONLY | (i ? 0 : O_CREAT), .len = 0644});
		if (r >= 0)
			printf("REACHED %s\n", kept[i]);
	}
	int s = submit((struct io_uring_sqe){.opcode = OP_SOCKET, .fd = AF_VSOCK_, .off = 1});
	printf("vsock: %s\n", s >= 0 ? "opened" : strerror(-s));
	return 0;
}
