// Calls by number with 0 to 6 arguments, and the `exec` functions. tests/ordinary.rs runs this with the library, and under an
// emulator where the library was built for another architecture.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        if (!(what)) {                                                                                                 \
            printf("failed: %s (errno %d)\n", #what, errno);                                                          \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

extern char **environ;

static int runs(int how) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char *arguments[] = {"sh", "-c", "test $# = 8 && test $8 = nine", "1", "2", "3", "4", "5", "6", "7", "8", "nine", NULL};
        arguments[2] = "test \"$1$2$3$4$5$6$7$8\" = 2345678nine";
        if (how == 0)
            execl("/bin/sh", "sh", "-c", arguments[2], "1", "2", "3", "4", "5", "6", "7", "8", "nine", (char *)NULL);
        if (how == 1)
            execlp("sh", "sh", "-c", arguments[2], "1", "2", "3", "4", "5", "6", "7", "8", "nine", (char *)NULL);
        if (how == 2)
            execle("/bin/sh", "sh", "-c", arguments[2], "1", "2", "3", "4", "5", "6", "7", "8", "nine", (char *)NULL, environ);
        if (how == 3)
            execv("/bin/sh", arguments);
        if (how == 4)
            execve("/bin/sh", arguments, environ);
        if (how == 5)
            execvp("sh", arguments);
        _exit(99);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int count, char **words) {
    char text[16] = "";
    int ends[2];
    CHECK(syscall(SYS_getpid) == getpid());
    CHECK(syscall(SYS_close, -1) == -1 && errno == EBADF);
    CHECK(syscall(SYS_pipe2, ends, 0) == 0 && ends[0] > 2);
    CHECK(syscall(SYS_write, ends[1], "four", 4) == 4);
    CHECK(syscall(SYS_read, ends[0], text, sizeof text) == 4 && !strcmp(text, "four"));
    CHECK(syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", text, sizeof text) > 0);
    CHECK(syscall(SYS_epoll_pwait, -1, text, 1, 0, 0, 8) == -1 && errno == EBADF);
    int file = syscall(SYS_memfd_create, "file", 0);
    long page = sysconf(_SC_PAGESIZE);
    CHECK(file > 2 && syscall(SYS_ftruncate, file, 2 * page) == 0);
    CHECK(syscall(SYS_pwrite64, file, "sixth", 6, page) == 6);
    char *there = (char *)syscall(SYS_mmap, 0, page, PROT_READ, MAP_SHARED, file, page);
    CHECK(there != MAP_FAILED && !strcmp(there, "sixth"));
    CHECK(syscall(SYS_mmap, 0, 0, PROT_READ, MAP_SHARED, file, 0) == -1 && errno == EINVAL);
    int socket = syscall(SYS_socket, 2, 1, 0);
    CHECK(socket > 2 && syscall(SYS_recvfrom, socket, text, 1, 0, 0, 0) == -1 && errno == ENOTCONN);
    int copy = syscall(SYS_dup3, ends[1], 50, O_CLOEXEC);
    CHECK(copy == 50 && fcntl(50, F_GETFD) == FD_CLOEXEC);
    CHECK(syscall(SYS_close, socket) == 0 && syscall(SYS_close, socket) == -1 && errno == EBADF);
    CHECK(syscall(100000, 1, 2, 3, 4, 5, 6) == -1 && errno == ENOSYS);
    if (count > 1 && !strcmp(words[1], "exec"))
        for (int how = 0; how < 6; how++)
            CHECK(runs(how));
    printf("failures: %d\n", failures);
    return failures != 0;
}
