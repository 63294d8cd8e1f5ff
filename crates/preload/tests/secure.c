/* A program that says whether it runs in secure-execution mode, and does what the library would act on: it makes an epoll
 * instance and an IPv4 socket. */
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/socket.h>

int main(void)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int inet = socket(AF_INET, SOCK_STREAM, 0);
    printf("secure: %lu, made: %d\n", getauxval(AT_SECURE), epoll >= 0 && inet >= 0);
    return 0;
}
