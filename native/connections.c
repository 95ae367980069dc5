/* Connections to the sidecar. Idle ones wait in a few slots that are swapped without a lock, so neither many threads nor a
 * fork can get stuck on them. Every wait ends with a deadline. */
#include "shim.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 32, PAUSE_MS = 50 };

static atomic_int slots[SLOTS]; /* descriptor + 1, so that an empty one is 0 */

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void connection_drop(int fd)
{
    shutdown(fd, SHUT_RDWR); /* a forked child may hold it too, and the sidecar is to see that nobody waits any more */
    close(fd);
}

/* An idle connection on which something arrived, if only its end, is of no more use. */
static bool fresh(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

int connection_kept(void)
{
    for (int i = 0; i < SLOTS; i++) {
        const int fd = slots[i] ? atomic_exchange(&slots[i], 0) - 1 : -1;
        if (fd >= 0 && fresh(fd))
            return fd;
        if (fd >= 0)
            connection_drop(fd);
    }
    return -1;
}

void connection_keep(int fd)
{
    for (int i = 0; i < SLOTS; i++) {
        int empty = 0;
        if (atomic_compare_exchange_strong(&slots[i], &empty, fd + 1))
            return;
    }
    connection_drop(fd);
}

void connections_forget(void)
{
    for (int i = 0; i < SLOTS; i++) {
        const int fd = atomic_exchange(&slots[i], 0) - 1;
        if (fd >= 0)
            close(fd); /* not shut down: the parent goes on using it */
    }
}

/* Wait until the descriptor is ready; false with ETIMEDOUT where the deadline passes first. */
static bool ready(int fd, short events, int64_t deadline)
{
    for (;;) {
        struct pollfd waited = {.fd = fd, .events = events};
        const int64_t left = deadline - now_ms();
        const int count = left > 0 ? poll(&waited, 1, (int)left) : 0;
        if (count > 0)
            return true;
        if (count == 0 && left <= 1) {
            errno = ETIMEDOUT;
            return false;
        }
        if (count < 0 && errno != EINTR)
            return false;
    }
}

/* A port nobody listens on may be given to the very socket that tries to reach it. */
static bool itself(int fd)
{
    struct sockaddr_storage own, other;
    socklen_t own_size = sizeof own, other_size = sizeof other;
    return settings.address.ss_family != AF_UNIX && !getsockname(fd, (struct sockaddr *)&own, &own_size) &&
           !getpeername(fd, (struct sockaddr *)&other, &other_size) && own_size == other_size &&
           !memcmp(&own, &other, own_size);
}

static int connect_once(int64_t deadline)
{
    const int one = 1;
    const int fd = socket(settings.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int fault = 0;
    socklen_t size = sizeof fault;
    if (fd < 0)
        return -1;
    if (settings.address.ss_family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    bool made = !connect(fd, (const struct sockaddr *)&settings.address, settings.address_size);
    if (!made && (errno == EINPROGRESS || errno == EINTR))
        made = ready(fd, POLLOUT, deadline) && !getsockopt(fd, SOL_SOCKET, SO_ERROR, &fault, &size) && !fault;
    if (made && !itself(fd))
        return fd;
    close(fd);
    return -1;
}

int connection_new(int64_t patience)
{
    for (;;) { /* a sidecar that is being restarted is back in a moment */
        const int fd = connect_once(patience);
        if (fd >= 0 || now_ms() + PAUSE_MS >= patience)
            return fd;
        poll(NULL, 0, PAUSE_MS);
    }
}

bool connection_send(int fd, const char *bytes, size_t size, int64_t deadline)
{
    while (size) {
        const ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!ready(fd, POLLOUT, deadline))
                return false;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

ssize_t connection_read(int fd, char *bytes, size_t size, int64_t deadline)
{
    for (;;) {
        if (now_ms() >= deadline) {
            errno = ETIMEDOUT;
            return -1;
        }
        const ssize_t got = recv(fd, bytes, size, 0);
        if (got >= 0)
            return got;
        if (errno != EINTR && ((errno != EAGAIN && errno != EWOULDBLOCK) || !ready(fd, POLLIN, deadline)))
            return -1;
    }
}
