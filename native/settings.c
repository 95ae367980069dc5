/* Settings from the environment. They are read when the library is loaded, so that no call needs a lock for them; what is
 * wrong with them is told later, since a preloaded library is loaded into every program that the harvester starts. */
#include "shim.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TIMEOUT_MS = 15000, LEAST_TIMEOUT_MS = 100, MOST_TIMEOUT_MS = 19000 };

struct settings settings = {.timeout_ms = DEFAULT_TIMEOUT_MS};

static void complain(const char *name, const char *what)
{
    snprintf(settings.complaint, sizeof settings.complaint, "%s %s", name, what);
}

static bool read_unix(const char *path)
{
    struct sockaddr_un *to = (struct sockaddr_un *)&settings.address;
    if (path[0] != '/' || strlen(path) >= sizeof to->sun_path)
        return false;
    to->sun_family = AF_UNIX;
    memcpy(to->sun_path, path, strlen(path) + 1);
    settings.address_size = sizeof *to;
    return true;
}

/* A number and nothing else; -1 where it is none or outside. */
static long read_number(const char *text, long least, long most)
{
    char *end = NULL;
    errno = 0;
    const long number = strtol(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && !*end && !errno && number >= least && number <= most ? number : -1;
}

static bool read_tcp(const char *text)
{
    char host[48];
    const char *colon = strrchr(text, ':');
    const long port = colon ? read_number(colon + 1, 1, 65535) : -1;
    if (port < 0 || (size_t)(colon - text) >= sizeof host)
        return false;
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = 0;
    if (!strcmp(host, "[::1]")) {
        struct sockaddr_in6 *to = (struct sockaddr_in6 *)&settings.address;
        to->sin6_family = AF_INET6;
        to->sin6_port = htons((uint16_t)port);
        to->sin6_addr = in6addr_loopback;
        settings.address_size = sizeof *to;
        return true;
    }
    struct sockaddr_in *to = (struct sockaddr_in *)&settings.address;
    to->sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, strcmp(host, "localhost") ? host : "127.0.0.1", &to->sin_addr) != 1 ||
        (ntohl(to->sin_addr.s_addr) >> 24) != 127)
        return false;
    to->sin_family = AF_INET;
    settings.address_size = sizeof *to;
    return true;
}

static void read_sidecar(void)
{
    const char *text = getenv("GPUPOOL_HARVESTER_SIDECAR");
    if (!text || !*text)
        complain("GPUPOOL_HARVESTER_SIDECAR", "is not set: the bundled library does everything");
    else if (!(strncmp(text, "unix:", 5) ? read_tcp(text) : read_unix(text + 5)))
        complain("GPUPOOL_HARVESTER_SIDECAR",
                 "is neither unix:/path nor host:port of this machine: the bundled library does everything");
    if (!settings.address_size)
        settings.fall_back = FALL_BACK_ALWAYS;
}

static void read_fall_back(void)
{
    static const char *const words[] = {"off", "away", "always"};
    const char *text = getenv("GPUPOOL_HARVESTER_FALLBACK");
    for (int i = 0; text && i < 3; i++)
        if (!strcmp(text, words[i])) {
            settings.fall_back = (fall_back)i;
            return;
        }
    if (text && *text)
        complain("GPUPOOL_HARVESTER_FALLBACK", "is none of off, away, always: off is taken");
}

static void read_timeout(void)
{
    const char *text = getenv("GPUPOOL_HARVESTER_TIMEOUT_MS");
    const long given = text && *text ? read_number(text, LEAST_TIMEOUT_MS, MOST_TIMEOUT_MS) : DEFAULT_TIMEOUT_MS;
    if (given < 0)
        complain("GPUPOOL_HARVESTER_TIMEOUT_MS", "is no number from 100 to 19000: 15000 is taken");
    else
        settings.timeout_ms = (int)given;
}

static void read_log_path(void)
{
    const char *text = getenv("GPUPOOL_HARVESTER_LOG");
    if (text && strlen(text) < sizeof settings.log_path - 2)
        memcpy(settings.log_path, text, strlen(text) + 1);
}

/* A forked child shares neither connections nor threads with its parent. */
static void begin_anew(void)
{
    connections_forget();
    bundled_forget();
    journal_begin();
}

__attribute__((constructor)) static void load(void)
{
    read_log_path();
    read_timeout();
    read_fall_back();
    read_sidecar();
    journal_begin();
    pthread_atfork(NULL, NULL, begin_anew);
}
