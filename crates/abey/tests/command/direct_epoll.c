/* A program whose sockets go through the C library, and whose epoll calls do not: ACTION PORT KIND.

   ACTION is `serve` (an echo server that adds its listener, and then waits), `late` (it accepts first, and adds the listener when
   there is nothing), `handed` (it waits for a connection in accept, and for what comes later in epoll), `udp` (an echo server),
   `ask` (connects to 198.18.10.2 at the port, sends "a" and prints the answer) or `ask-udp`.
   KIND is `level`, `edge` or `once`. An `edge` server reads once for each event unless the buffer was filled. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static long call(long number, long a, long b, long c, long d, long e, long f)
{
#ifdef __x86_64__
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long answer;

	__asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return answer;
#else
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#endif
}

static int epoll;
static unsigned kind;

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void control(int operation, int fd, unsigned events)
{
	struct epoll_event event = { .events = events | kind, .data.fd = fd };

	check(call(SYS_epoll_ctl, epoll, operation, fd, (long)&event, 0, 0) == 0, "control");
}

static int next(unsigned *events)
{
	struct epoll_event event;

	while (call(SYS_epoll_pwait, epoll, (long)&event, 1, -1, 0, 8) != 1)
		;
	*events = event.events;
	return event.data.fd;
}

static void rearm(int fd, unsigned events)
{
	if (kind == EPOLLONESHOT)
		control(EPOLL_CTL_MOD, fd, events);
}

static void set_nonblocking(int fd)
{
	/* As rustix does, which makes this call itself, too. */
	check(call(SYS_fcntl, fd, F_SETFL, O_RDWR | O_NONBLOCK, 0, 0, 0) == 0, "flags");
}

static void accept_all(int listener)
{
	int fd;

	while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		set_nonblocking(fd);
		control(EPOLL_CTL_ADD, fd, EPOLLIN);
		if (kind != EPOLLET)
			break;
	}
	check(fd >= 0 || errno == EAGAIN, "accept");
}

static void echo(int fd)
{
	char buffer[4096];
	ssize_t length;

	do {
		length = read(fd, buffer, sizeof buffer);
		if (length == 0 || (length < 0 && errno != EAGAIN)) {
			close(fd);
			return;
		}
		if (length > 0)
			check(write(fd, buffer, length) == length, "write");
	} while (length == sizeof buffer);
	rearm(fd, EPOLLIN);
}

static void echo_datagrams(int fd)
{
	struct sockaddr_in peer;
	socklen_t size = sizeof peer;
	char buffer[4096];
	ssize_t length;

	while ((length = recvfrom(fd, buffer, sizeof buffer, 0, (struct sockaddr *)&peer, &size)) >= 0)
		check(sendto(fd, buffer, length, 0, (struct sockaddr *)&peer, size) == length, "send");
	check(errno == EAGAIN, "receive");
	rearm(fd, EPOLLIN);
}

static void ask(int type, struct sockaddr_in *to)
{
	int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error = 0, is_sent = 0;
	socklen_t size = sizeof error;
	unsigned events;
	char buffer[2] = "";
	ssize_t length = -1;

	check(inet_aton("198.18.10.2", &to->sin_addr), "address");
	check(connect(fd, (struct sockaddr *)to, sizeof *to) == 0 || errno == EINPROGRESS, "connect");
	control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT);
	while (length < 0) {
		next(&events);
		check(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0, "option");
		errno = error;
		check(error == 0, "connection");
		if (!is_sent && write(fd, "a", 1) == 1)
			is_sent = 1;
		length = read(fd, buffer, 1);
		check(length == 1 || errno == EAGAIN || errno == ENOTCONN, "answer");
		rearm(fd, EPOLLIN | (is_sent ? 0 : EPOLLOUT));
	}
	puts(buffer);
	exit(0);
}

int main(int count, char **arguments)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	const char *action = arguments[1];
	int one = 1, fd, listener;
	unsigned events;

	check(count > 3, "arguments");
	kind = !strcmp(arguments[3], "edge") ? EPOLLET : !strcmp(arguments[3], "once") ? EPOLLONESHOT : 0;
	at.sin_port = htons(atoi(arguments[2]));
	epoll = call(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0, 0, 0);
	check(epoll >= 0, "epoll");
	if (!strncmp(action, "ask", 3))
		ask(strcmp(action, "ask") ? SOCK_DGRAM : SOCK_STREAM, &at);
	listener = socket(AF_INET, (strcmp(action, "udp") ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0, "bind");
	check(!strcmp(action, "udp") || listen(listener, 16) == 0, "listen");
	if (strcmp(action, "handed"))
		set_nonblocking(listener);
	if (!strcmp(action, "late"))
		accept_all(listener);
	while (!strcmp(action, "handed")) {
		fd = accept(listener, NULL, NULL);
		check(fd >= 0, "accept");
		set_nonblocking(fd);
		control(EPOLL_CTL_ADD, fd, EPOLLIN);
		for (count = 0; count < 3;) {
			char byte;
			if (next(&events) == fd && read(fd, &byte, 1) == 1) {
				count++;
				check(write(fd, &byte, 1) == 1, "write");
			}
			rearm(fd, EPOLLIN);
		}
		close(fd);
	}
	control(EPOLL_CTL_ADD, listener, EPOLLIN);
	for (;;) {
		fd = next(&events);
		if (!strcmp(action, "udp")) {
			echo_datagrams(fd);
		} else if (fd == listener) {
			accept_all(listener);
			rearm(listener, EPOLLIN);
		} else {
			echo(fd);
		}
	}
}
