/* What the parts of the shim know of each other. Times are milliseconds of the monotonic clock. */
#ifndef GPUPOOL_SHIM_H
#define GPUPOOL_SHIM_H

#include "gr.h"
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

int64_t now_ms(void);

/* settings.c: the environment, read once when the library is loaded and never changed after. */
typedef enum { FALL_BACK_NEVER, FALL_BACK_AWAY, FALL_BACK_ALWAYS } fall_back;

struct settings {
    struct sockaddr_storage address;
    socklen_t address_size;
    int timeout_ms;
    fall_back fall_back;
    char log_path[4096];
    char complaint[200]; /* what was wrong with it, empty where nothing was */
};
extern struct settings settings;

/* journal.c: what was lost, in numbers for the sidecar and in words for the operator. */
enum kind { QUALITY, PROOF };

struct call {
    enum kind kind;
    uint32_t level;
    const uint8_t *plot_id;
    int64_t began, deadline;
    const char *why; /* a word of native/README.md */
    int status;      /* HTTP, where the sidecar refused */
    char id[48];
};
void journal_begin(void);
void journal_lost(const struct call *call);
void journal_no_proof(const struct call *call);
void journal_fell_back(const struct call *call);
void journal_say(const char *words);
int journal_header(char *text, size_t size);

/* connections.c: connections to the sidecar that never outlast a deadline. */
int connection_kept(void);
int connection_new(int64_t patience);
void connection_keep(int fd);
void connection_drop(int fd);
bool connection_send(int fd, const char *bytes, size_t size, int64_t deadline);
/* Bytes read (0: the other side closed), or -1 with errno; ETIMEDOUT where the deadline passed. */
ssize_t connection_read(int fd, char *bytes, size_t size, int64_t deadline);
void connections_forget(void);

/* exchange.c: one question and its answer of exactly `size` bytes. Sets call->why unless the result is GR_OK. */
gr_result exchange(struct call *call, const char *path, const char *body, uint8_t *answer, size_t size);

/* bundled.c: the library that chiapos came with, in a private copy; its own results, or -1 where it was not asked. */
void bundled_configure(const gr_config *config);
int bundled_proof(gr_proof *proof, int64_t deadline);
int bundled_quality(gr_quality *quality, int64_t deadline);
void bundled_forget(void);

#endif
