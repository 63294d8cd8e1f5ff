/* A thread that is cancelled in a wait ends there, and leaves nothing locked. tests/waits.rs connects and sends nothing. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

static int listener, connection, epoll;
static char room[64];

static void *in_poll(void *unused)
{
    struct pollfd one = { .fd = connection, .events = POLLIN };
    poll(&one, 1, -1);
    return unused;
}

static void *in_select(void *unused)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(connection, &set);
    select(connection + 1, &set, NULL, NULL, NULL);
    return unused;
}

static void *in_epoll(void *unused)
{
    struct epoll_event event;
    epoll_wait(epoll, &event, 1, -1);
    return unused;
}

static void *in_read(void *unused)
{
    read(connection, room, sizeof room);
    return unused;
}

static void *in_recv(void *unused)
{
    recv(connection, room, sizeof room, 0);
    return unused;
}

static void *in_accept(void *unused)
{
    accept(listener, NULL, NULL);
    return unused;
}

static void handler(int signal)
{
    (void)signal;
}

int main(void)
{
    static void *(*const waits[])(void *) = { in_poll, in_select, in_epoll, in_read, in_recv, in_accept };
    struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons(7001) };
    const char *address = getenv("SCENARIO_OWN");
    if (!address || inet_pton(AF_INET, address, &own.sin_addr) != 1)
        return 2;
    alarm(60);
    setvbuf(stdout, NULL, _IOLBF, 0);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&own, sizeof own) || listen(listener, 4))
        return 3;
    /* A datapath listener is opened by the first wait for it. */
    struct pollfd first = { .fd = listener, .events = POLLIN };
    poll(&first, 1, 0);
    printf("!connect 7001\n");
    connection = accept(listener, NULL, NULL);
    epoll = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, connection, &event))
        return 4;
    /* From the second round on there are handlers with and without SA_RESTART; waits then query the pending signals. */
    for (int round = 0; round < 3; round++) {
        for (size_t at = 0; at < sizeof waits / sizeof *waits; at++) {
            pthread_t thread;
            void *end = NULL;
            pthread_create(&thread, NULL, waits[at], NULL);
            /* Cancels before the wait begins, and during it. */
            if (round < 2)
                usleep(30000);
            pthread_cancel(thread);
            pthread_join(thread, &end);
            printf("%s\n", end == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        }
        struct sigaction action = { .sa_handler = handler };
        sigaction(SIGUSR1, &action, NULL);
        signal(SIGUSR2, handler);
    }
    printf("!send 1 hello\n");
    struct pollfd one = { .fd = connection, .events = POLLIN };
    printf("%d\n", poll(&one, 1, 20000));
    if (read(connection, room, sizeof room) == 5)
        printf("%.5s\n", room);
    return 0;
}
