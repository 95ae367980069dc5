/* Both ends of the proxy's benchmark: servers that answer after a fixed time, and clients that ask without a pause.
 *
 *   peers serve PORT frames|http DELAY_MS
 *   peers ask   PORT frames|http CLIENTS SECONDS keep|anew
 *
 * "anew" makes a connection for each request, as harvesters do; "keep" has one a client. "ask" prints one line:
 * answers, failures, seconds, and the 50th and 99th percentile of the latency in milliseconds. Linux only.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 16384, MOST = 65536, BATCH = 256 };

struct peer {
    bool open, connecting;
    unsigned turn; /* which use of this descriptor it is */
    size_t held;
    double since;
    char bytes[ROOM];
};

struct owed {
    double due;
    int descriptor;
    unsigned turn;
};

static int events, listening = -1;
static bool speaks_http;
static char *message; /* what this end sends */
static size_t message_size;

static double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void watch(int descriptor, unsigned mask, int how) {
    struct epoll_event event = {.events = mask, .data.fd = descriptor};
    if (epoll_ctl(events, how, descriptor, &event) < 0) fail("epoll_ctl");
}

static struct sockaddr_in address_of(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* Bytes of the first whole message in a buffer, 0 while it is not whole. */
static size_t whole(const char *bytes, size_t held) {
    if (!speaks_http) {
        unsigned size;
        if (held < 4) return 0;
        memcpy(&size, bytes, 4);
        return held < 4 + (size_t)size ? 0 : 4 + (size_t)size;
    }
    const char *end = memmem(bytes, held, "\r\n\r\n", 4);
    if (!end) return 0;
    size_t head = (size_t)(end - bytes) + 4, body = 0;
    for (const char *at = bytes; at < end; at = (const char *)memchr(at, '\n', (size_t)(end + 2 - at)) + 1)
        if (!strncasecmp(at, "content-length:", 15)) body = strtoul(at + 15, NULL, 10);
    return held < head + body ? 0 : head + body;
}

static void set_message(bool server) {
    char body[2048], *text = malloc(4096);
    if (!speaks_http) {
        unsigned size = server ? 100 : 116;
        message_size = 4 + size;
        memset(text, 0x5a, message_size);
        memcpy(text, &size, 4);
    } else if (server) {
        size_t at = (size_t)sprintf(body, "{\"proof\": [\"1\"");
        for (int i = 1; i < 64; i++) at += (size_t)sprintf(body + at, ", \"%x\"", 1000003 * i);
        at += (size_t)sprintf(body + at, "], \"checked\": \"challenge\"}");
        message_size = (size_t)sprintf(
            text, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", at, body);
    } else {
        const char *question = "{\"level\": 1, \"x\": [\"0123456789abcdef\", \"fedcba9876543210\"]}";
        message_size = (size_t)sprintf(text,
                                       "POST /v1/proofs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                       "Content-Length: %zu\r\n\r\n%s",
                                       strlen(question), question);
    }
    message = text;
}

static void serve(int port, double delay) {
    static const char view[] =
        "{\"instance_id\": \"inst-bench\", \"version\": \"1\", \"state\": \"ready\", \"k\": [32], \"levels\": [1], "
        "\"devices\": [], \"rates\": [], \"queue\": {\"running\": 0, \"waiting\": 0, \"room\": 100}}";
    struct peer *peers = calloc(MOST, sizeof *peers);
    struct owed *queue = calloc(MOST, sizeof *queue);
    size_t first = 0, last = 0;
    struct epoll_event ready[BATCH];
    int yes = 1;
    struct sockaddr_in address = address_of(port);
    listening = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 4096)) fail("listen");
    watch(listening, EPOLLIN, EPOLL_CTL_ADD);
    for (;;) {
        int pause = first == last ? -1 : (int)((queue[first % MOST].due - clock_seconds()) * 1000 + 0.999);
        int count = epoll_wait(events, ready, BATCH, first == last ? -1 : pause < 0 ? 0 : pause);
        for (int i = 0; i < count; i++) {
            int one = ready[i].data.fd;
            if (one == listening) {
                while ((one = accept4(listening, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (one >= MOST) fail("too many connections");
                    setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                    peers[one].open = true, peers[one].held = 0, peers[one].turn++;
                    watch(one, EPOLLIN, EPOLL_CTL_ADD);
                }
                continue;
            }
            struct peer *peer = &peers[one];
            ssize_t got = recv(one, peer->bytes + peer->held, ROOM - peer->held, 0);
            /* Whoever asks a server of frames for its view learns by the end of the connection. */
            bool stranger = got > 3 && !speaks_http && !memcmp(peer->bytes, "GET ", 4);
            if (got <= 0 || stranger) {
                peer->open = false;
                close(one);
                continue;
            }
            peer->held += (size_t)got;
            size_t size;
            while ((size = whole(peer->bytes, peer->held))) {
                if (speaks_http && !memcmp(peer->bytes, "GET ", 4)) {
                    dprintf(one, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", sizeof view - 1, view);
                } else if (delay == 0) {
                    send(one, message, message_size, MSG_NOSIGNAL);
                } else {
                    queue[last++ % MOST] = (struct owed){clock_seconds() + delay, one, peer->turn};
                }
                memmove(peer->bytes, peer->bytes + size, peer->held -= size);
            }
        }
        for (double now = clock_seconds(); first != last && queue[first % MOST].due <= now; first++) {
            struct owed *owed = &queue[first % MOST];
            if (peers[owed->descriptor].open && peers[owed->descriptor].turn == owed->turn)
                send(owed->descriptor, message, message_size, MSG_NOSIGNAL);
        }
    }
}

static struct peer *clients;
static int *who; /* descriptor -> client */
static unsigned long failures;

static void ask(int client, int *descriptor, int port, double now) {
    struct peer *peer = &clients[client];
    int yes = 1;
    peer->held = 0, peer->since = now;
    if (*descriptor >= 0) {
        send(*descriptor, message, message_size, MSG_NOSIGNAL);
        return;
    }
    struct sockaddr_in address = address_of(port);
    int one = *descriptor = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (one < 0 || one >= MOST) fail("socket");
    setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    who[one] = client;
    if (connect(one, (struct sockaddr *)&address, sizeof address) < 0 && errno != EINPROGRESS) fail("connect");
    peer->connecting = true;
    watch(one, EPOLLOUT, EPOLL_CTL_ADD);
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void load(int port, int count, double seconds, bool keep) {
    int *descriptors = malloc((size_t)count * sizeof *descriptors);
    size_t answers = 0, room = 1 << 22;
    float *took = malloc(room * sizeof *took);
    struct epoll_event ready[BATCH];
    clients = calloc((size_t)count, sizeof *clients);
    who = calloc(MOST, sizeof *who);
    double began = clock_seconds(), now = began;
    for (int i = 0; i < count; i++) descriptors[i] = -1, ask(i, &descriptors[i], port, now);
    while ((now = clock_seconds()) < began + seconds) {
        int found = epoll_wait(events, ready, BATCH, 20);
        for (int i = 0; i < found; i++) {
            int one = ready[i].data.fd, client = who[one];
            struct peer *peer = &clients[client];
            ssize_t got = 0;
            if (peer->connecting && !(ready[i].events & (EPOLLERR | EPOLLHUP))) {
                peer->connecting = false;
                watch(one, EPOLLIN, EPOLL_CTL_MOD);
                send(one, message, message_size, MSG_NOSIGNAL);
                continue;
            }
            if (!peer->connecting) got = recv(one, peer->bytes + peer->held, ROOM - peer->held, 0);
            if (got <= 0) {
                failures++;
            } else {
                peer->held += (size_t)got;
                if (!whole(peer->bytes, peer->held)) continue;
                bool good = !speaks_http || !memcmp(peer->bytes, "HTTP/1.1 200", 12);
                if (!good) failures++;
                else if (answers < room) took[answers++] = (float)(clock_seconds() - peer->since);
            }
            if (got <= 0 || !keep) close(one), descriptors[client] = -1;
            ask(client, &descriptors[client], port, clock_seconds());
        }
    }
    double length = now - began;
    qsort(took, answers, sizeof *took, ascending);
    printf("%zu %lu %.3f %.3f %.3f\n", answers, failures, length, answers ? 1e3 * took[answers / 2] : 0,
           answers ? 1e3 * took[answers * 99 / 100] : 0);
}

int main(int count, char **words) {
    struct rlimit files = {MOST, MOST};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    events = epoll_create1(0);
    if (count == 5 && !strcmp(words[1], "serve")) {
        speaks_http = !strcmp(words[3], "http");
        set_message(true);
        serve(atoi(words[2]), atof(words[4]) / 1e3);
    } else if (count == 7 && !strcmp(words[1], "ask")) {
        speaks_http = !strcmp(words[3], "http");
        set_message(false);
        load(atoi(words[2]), atoi(words[4]), atof(words[5]), !strcmp(words[6], "keep"));
    } else {
        fputs("see the head of peers.c\n", stderr);
        return 2;
    }
    return 0;
}
