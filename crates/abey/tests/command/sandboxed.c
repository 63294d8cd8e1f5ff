/* An echo server that forbids itself system calls: PORT WHEN ACTION CALL...

   WHEN is `listen` (between listen and the first accept), `accept` (while a first connection is open), `child` (in a child, for
   the connection that its parent accepted) or `exec` (before it executes itself, to serve from the beginning).
   ACTION is `kill`, `errno` or `only`: the calls end the process, fail, or are the only ones that do not end it. Or it is
   `limit RESOURCE VALUE` (prlimit; RLIMIT_AS counts from what is in use), `prctl OPTION VALUE`, `chroot DIRECTORY`, or
   `landlock 0`, which forbids all files and, where the kernel can, abstract sockets of others. */

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static unsigned long used(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	check(file && fscanf(file, "%lu", &pages) == 1, "statm");
	fclose(file);
	return pages * 4096;
}

static void landlock(void)
{
	struct { unsigned long long files, ports, scopes; } rules = { 0x1fff, 0, 3 };
	long version = syscall(444, NULL, 0, 1);
	int set;

	if (version < 0) {
		fputs("no landlock\n", stderr);
		return;
	}
	set = syscall(444, &rules, version >= 6 ? 24 : 8, 0);
	check(set >= 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(446, set, 0) == 0, "landlock");
	close(set);
}

/* Does what the arguments say, unless it is a filter. */
static int restrict_itself(char **arguments)
{
	const char *what = arguments[0];
	long number = atol(arguments[1]);
	struct rlimit limit;

	if (!strcmp(what, "limit")) {
		limit.rlim_cur = limit.rlim_max = atol(arguments[2]) + (number == RLIMIT_AS ? used() : 0);
		check(prlimit(0, number, &limit, NULL) == 0, "limit");
	} else if (!strcmp(what, "prctl")) {
		check(prctl(number, atol(arguments[2]), 0, 0, 0) == 0, "prctl");
	} else if (!strcmp(what, "chroot")) {
		check(chroot(arguments[1]) == 0 && chdir("/") == 0, "chroot");
	} else if (!strcmp(what, "landlock")) {
		landlock();
	} else {
		return 0;
	}
	return 1;
}

static void forbid(char **arguments)
{
	struct sock_filter code[128];
	unsigned short n = 0, first;
	int only = !strcmp(arguments[0], "only");
	unsigned int denied = SECCOMP_RET_KILL_PROCESS, listed, others;

	if (restrict_itself(arguments))
		return;
	if (!strcmp(arguments[0], "errno"))
		denied = SECCOMP_RET_ERRNO | EPERM;
	listed = only ? SECCOMP_RET_ALLOW : denied;
	others = only ? denied : SECCOMP_RET_ALLOW;
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (first = 1; arguments[first]; first++) {
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(arguments[first]), 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, listed);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, others);
	struct sock_fprog program = { n, code };
	check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
	check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0, "filter");
}

static void serve_one(int fd)
{
	char buffer[4096];
	ssize_t length;

	while ((length = read(fd, buffer, sizeof buffer)) > 0)
		if (write(fd, buffer, length) != length)
			break;
	close(fd);
}

static void serve(int listener, int epoll, int first)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = listener };
	char buffer[4096];

	check(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) == 0, "add the listener");
	if (first >= 0) {
		event.data.fd = first;
		check(epoll_ctl(epoll, EPOLL_CTL_ADD, first, &event) == 0, "add the first connection");
	}
	while (epoll_wait(epoll, &event, 1, -1) >= 0) {
		int fd = event.data.fd;
		if (fd == listener) {
			fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
			check(fd >= 0, "accept");
			event.events = EPOLLIN;
			event.data.fd = fd;
			check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "add");
			continue;
		}
		ssize_t length = read(fd, buffer, sizeof buffer);
		if (length <= 0 || write(fd, buffer, length) != length)
			close(fd);
	}
}

int main(int count, char **arguments)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	const char *when = arguments[2];
	int one = 1, first = -1;

	check(count > 3, "arguments");
	if (!strcmp(when, "exec")) {
		forbid(arguments + 3);
		arguments[2] = "inherited";
		execv(arguments[0], arguments);
		check(0, "execute");
	}
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	at.sin_port = htons(atoi(arguments[1]));
	check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0, "bind");
	check(listen(listener, 16) == 0, "listen");
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	check(epoll >= 0, "epoll");
	while (!strcmp(when, "child")) {
		first = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		check(first >= 0, "accept");
		if (fork() == 0) {
			forbid(arguments + 3);
			serve_one(first);
			_exit(0);
		}
		close(first);
		while (waitpid(-1, &one, WNOHANG) > 0)
			check(WIFEXITED(one) && WEXITSTATUS(one) == 0, "child");
	}
	if (!strcmp(when, "accept")) {
		char buffer[1];
		first = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		check(first >= 0 && read(first, buffer, 1) == 1 && write(first, buffer, 1) == 1, "first connection");
	}
	if (strcmp(when, "inherited"))
		forbid(arguments + 3);
	serve(listener, epoll, first);
	return 1;
}
