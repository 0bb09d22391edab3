/* Uses `dominoes.h` against an echo service: one socket of ours and one of the kernel. With an
 * argument, a name that the stack's servers know, it also looks that up, and counts memory. */
#define _GNU_SOURCE
#include "dominoes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                  \
    do {                                                                  \
        if (!(condition)) {                                               \
            printf("line %d: %s, errno %d\n", __LINE__, #condition, errno); \
            return 1;                                                     \
        }                                                                 \
    } while (0)

static int look_up(const char *name) {
    size_t used = 0;
    for (int round = 0; round < 300; round++) {
        struct addrinfo hints = {0}, *found = NULL;
        hints.ai_flags = AI_CANONNAME;
        CHECK(dominoes_getaddrinfo(name, "7", &hints, &found) == 0);
        CHECK(found != NULL && strcmp(found->ai_canonname, name) == 0);
        int families[2] = {0, 0};
        for (struct addrinfo *one = found; one != NULL; one = one->ai_next)
            families[one->ai_family == AF_INET6]++;
        CHECK(families[0] == 3 && families[1] == 3);
        if (round % 2)
            dominoes_freeaddrinfo(found);
        else
            freeaddrinfo(found);
        if (round == 100)
            used = mallinfo2().uordblks;
    }
    CHECK(mallinfo2().uordblks < used + 65536);
    return 0;
}

int main(int count, char **arguments) {
    struct sockaddr_in to = {0};
    to.sin_family = AF_INET;
    to.sin_port = htons(7);
    to.sin_addr.s_addr = inet_addr("10.78.0.2");
    int ours = dominoes_socket(AF_INET, SOCK_STREAM, 0);
    int kernels = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(ours >= 0 && kernels >= 0);
    CHECK(dominoes_connect(ours, (struct sockaddr *)&to, sizeof to) == 0);
    CHECK(connect(kernels, (struct sockaddr *)&to, sizeof to) == 0);
    CHECK(dominoes_send(ours, "prefix", 6, MSG_NOSIGNAL) == 6);
    CHECK(write(kernels, "kernel", 6) == 6);
    struct pollfd both[2] = {{ours, POLLIN, 0}, {kernels, POLLIN, 0}};
    do
        CHECK(dominoes_poll(both, 2, 10000) > 0);
    while (!(both[0].revents & both[1].revents & POLLIN));
    char bytes[8] = {0};
    CHECK(dominoes_recv(ours, bytes, 6, MSG_WAITALL) == 6 && memcmp(bytes, "prefix", 6) == 0);
    CHECK(dominoes_read(kernels, bytes, 6) == 6 && memcmp(bytes, "kernel", 6) == 0);
    /* The functions of libc know our sockets, too. */
    CHECK(write(ours, "libc's", 6) == 6 && recv(ours, bytes, 6, MSG_WAITALL) == 6);
    int again = dominoes_fcntl(ours, F_DUPFD_CLOEXEC, 100);
    CHECK(again >= 100 && dominoes_close(again) == 0 && dominoes_close(ours) == 0);
    CHECK(dominoes_recv(ours, bytes, 6, 0) == -1 && errno == EBADF);
    CHECK(close(kernels) == 0);
    CHECK(count < 2 || look_up(arguments[1]) == 0);
    puts("passed");
    return 0;
}
