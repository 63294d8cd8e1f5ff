// Calls by number that the C library's `syscall` allows and a careless one does not. tests/ordinary.rs compares the output with
// the library and without.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int allocations;

// An allocator that makes its own calls by number, as jemalloc does, from the first allocation of the process on.
void *malloc(size_t size) {
    static char *at, *end;
    char byte;
    allocations++;
    long zero = syscall(SYS_openat, AT_FDCWD, "/dev/zero", O_RDONLY);
    syscall(SYS_read, zero, &byte, 1);
    syscall(SYS_fcntl, zero, F_GETFD, 0);
    syscall(SYS_close, zero);
    size = (size + 15) & ~15ul;
    if (at + size > end) {
        long room = size > 1 << 20 ? size : 1 << 20;
        at = (char *)syscall(SYS_mmap, 0, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        end = at + room;
    }
    at += size;
    return at - size;
}
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t size) { return memset(malloc(count * size), 0, count * size); }
void *realloc(void *old, size_t size) {
    // What follows the old block is copied too.
    void *block = malloc(size);
    return old ? memmove(block, old, size) : block;
}

static int early = -1;
__attribute__((constructor)) static void construct(void) { early = syscall(SYS_socket, 2, 1, 0); }

static int status_of(long child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#ifdef __x86_64__
// Ends the child after it has overwritten the stack that it shares with its parent, below the return address of its call.
#define END_CHILD(status)                                                                                              \
    __asm__ volatile("lea -16(%%rsp), %%rdi; mov $1000, %%ecx; mov $0x5a, %%eax; std; rep stosb; cld; mov %0, %%edi; mov $60, %%eax; syscall" \
                     : : "i"(status) : "memory", "rdi", "rcx", "rax")
static void shared_stack(void) {
    long child = syscall(SYS_vfork);
    if (child == 0)
        END_CHILD(7);
    printf("vfork: %d\n", status_of(child));
    child = syscall(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        END_CHILD(8);
    printf("clone with the parent's memory: %d\n", status_of(child));
}
#else
static void shared_stack(void) {}
#endif

int main(void) {
    shared_stack();
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        syscall(SYS_exit, 9);
    printf("clone: %d\n", status_of(child));
    unsigned long arguments[8] = {0, 0, 0, 0, SIGCHLD};
    child = syscall(SYS_clone3, arguments, sizeof arguments);
    if (child == 0)
        syscall(SYS_exit, 10);
    printf("clone3: %d\n", status_of(child));
    printf("early: %d\n", early > 2 && syscall(SYS_close, early) == 0);
    long numbers[] = {100000, 512, 511, -1};
    for (int at = 0; at < 4; at++) {
        long answer = syscall(numbers[at]);
        printf("%ld: %ld %s\n", numbers[at], answer, strerror(errno));
    }
    long epoll = syscall(SYS_epoll_create1, 0);
    printf("epoll: %d %ld\n", epoll > 2, syscall(SYS_epoll_pwait, epoll, arguments, 1, 0, 0, 8));
    char ring[200] = {0};
    long uring = syscall(SYS_io_uring_setup, 4, ring);
    printf("io_uring: %s\n", uring >= 0 ? "made" : errno == ENOSYS ? "ENOSYS" : "not allowed");
    printf("allocations: %d\n", allocations > 0);
    return 0;
}
