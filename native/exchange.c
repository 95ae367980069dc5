/* One question to the sidecar over HTTP/1.1. The answer is taken only in the one shape it has; all else is a failure with a
 * word for it. */
#include "shim.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MOST_REPLY = 8192, PATIENT_MS = 2000, IMPATIENT_MS = 200, AWAY_MS = 10000 };

struct reply {
    char bytes[MOST_REPLY + 1];
    size_t size, head, length; /* received; up to and with the empty line; of the body, as announced */
    int status;
    bool keep;
};

/* Until when the sidecar counts as away. One call at a time finds out whether it is back; the others do not wait. */
static _Atomic int64_t away_until;

static bool counts_as_away(void)
{
    int64_t until = away_until;
    const int64_t now = now_ms();
    return until && (now < until || !atomic_compare_exchange_strong(&away_until, &until, now + AWAY_MS));
}

static const char *read_more(int fd, struct reply *reply, int64_t deadline)
{
    const ssize_t got = connection_read(fd, reply->bytes + reply->size, MOST_REPLY - reply->size, deadline);
    if (got <= 0)
        return got < 0 && errno == ETIMEDOUT ? "silent" : "closed";
    reply->size += (size_t)got;
    return NULL;
}

static bool read_length(struct reply *reply, const char *text, bool *given)
{
    size_t digits = strspn(text, "0123456789");
    if (*given || !digits || digits > 9 || text[digits + strspn(text + digits, " \t")])
        return false;
    for (const char *digit = text; digit < text + digits; digit++)
        reply->length = reply->length * 10 + (size_t)(*digit - '0');
    return *given = true;
}

static bool read_header(struct reply *reply, char *line, bool *length_given)
{
    char *value = strchr(line, ':');
    if (!value || value == line)
        return false;
    *value++ = 0;
    value += strspn(value, " \t");
    if (!strcasecmp(line, "transfer-encoding"))
        return false;
    if (!strcasecmp(line, "connection") && strcasecmp(value, "keep-alive"))
        reply->keep = false;
    return strcasecmp(line, "content-length") || read_length(reply, value, length_given);
}

/* Parse the head in place; false where it is not what this library understands. */
static bool read_head(struct reply *reply)
{
    bool length_given = false;
    char *line = reply->bytes, *const end = reply->bytes + reply->head - 2;
    if (memchr(line, 0, reply->head) || strncmp(line, "HTTP/1.1 ", 9) || strspn(line + 9, "0123456789") != 3 ||
        (line[12] != ' ' && line[12] != '\r'))
        return false;
    reply->status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + line[11] - '0';
    reply->keep = true;
    for (line = strstr(line, "\r\n") + 2; line < end;) {
        char *const next = strstr(line, "\r\n");
        *next = 0;
        if (!read_header(reply, line, &length_given))
            return false;
        line = next + 2;
    }
    return length_given && reply->status >= 200;
}

/* Read a whole reply; the word of what went wrong, or NULL. A body without room is left where it is. */
static const char *read_reply(int fd, struct reply *reply, int64_t deadline)
{
    const char *end = NULL, *why = NULL;
    while (!(end = memmem(reply->bytes, reply->size, "\r\n\r\n", 4))) {
        if (reply->size == MOST_REPLY)
            return "garbled";
        if ((why = read_more(fd, reply, deadline)))
            return why;
    }
    reply->head = (size_t)(end - reply->bytes) + 4;
    if (!read_head(reply))
        return "garbled";
    if (reply->length > MOST_REPLY - reply->head) {
        reply->keep = false;
        return reply->status == 200 ? "garbled" : NULL;
    }
    while (reply->size < reply->head + reply->length)
        if ((why = read_more(fd, reply, deadline)))
            return why;
    reply->bytes[reply->size] = 0;
    return reply->size == reply->head + reply->length ? NULL : "garbled";
}

static const char *converse(int fd, struct call *call, const char *path, const char *body, struct reply *reply)
{
    char request[2048], failures[256];
    const int64_t left = call->deadline - now_ms();
    memset(reply, 0, sizeof *reply);
    journal_header(failures, sizeof failures);
    const int size = snprintf(request, sizeof request,
                              "POST %s HTTP/1.1\r\nHost: gpupool\r\nAccept: application/octet-stream\r\n"
                              "Content-Type: application/json\r\nContent-Length: %zu\r\nX-Request-Id: %s\r\n"
                              "X-Deadline-Ms: %lld\r\n%s\r\n%s",
                              path, strlen(body), call->id, (long long)(left > 1 ? left - (left > 2000 ? 200 : left / 10) : 1),
                              failures, body);
    if (size < 0 || (size_t)size >= sizeof request)
        return "garbled";
    if (!connection_send(fd, request, (size_t)size, call->deadline))
        return errno == ETIMEDOUT ? "silent" : "closed";
    return read_reply(fd, reply, call->deadline);
}

/* Ask, a second time on a new connection where the first one ended on us. */
static const char *ask(struct call *call, const char *path, const char *body, struct reply *reply, bool patient)
{
    const char *why = "closed";
    int fd = connection_kept();
    for (int tries = 0; tries < 2 && !strcmp(why, "closed"); tries++) {
        const int64_t patience = now_ms() + (patient ? PATIENT_MS : IMPATIENT_MS);
        if (fd < 0)
            fd = connection_new(patience < call->deadline ? patience : call->deadline);
        if (fd < 0)
            return "unreachable";
        why = converse(fd, call, path, body, reply);
        if (!why && reply->keep)
            connection_keep(fd);
        else
            connection_drop(fd);
        if (!why)
            return NULL;
        fd = -1;
    }
    return why;
}

gr_result exchange(struct call *call, const char *path, const char *body, uint8_t *answer, size_t size)
{
    struct reply reply;
    const bool away = counts_as_away();
    call->why = "unreachable";
    if (away && settings.fall_back == FALL_BACK_AWAY)
        return GR_FAILED;
    call->why = ask(call, path, body, &reply, !away && settings.fall_back == FALL_BACK_NEVER);
    away_until = call->why && (!strcmp(call->why, "unreachable") || !strcmp(call->why, "silent")) ? now_ms() + AWAY_MS : 0;
    if (call->why)
        return GR_FAILED;
    if (reply.status == 200) {
        call->why = "garbled";
        if (reply.length != size)
            return GR_FAILED;
        memcpy(answer, reply.bytes + reply.head, size);
        return GR_OK;
    }
    call->why = "refused";
    call->status = reply.status;
    return reply.status == 404 && strstr(reply.bytes + reply.head, "\"no_proof\"") ? GR_NO_PROOF : GR_FAILED;
}
