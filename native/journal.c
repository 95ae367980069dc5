/* What was lost. The stock prover swallows a failed quality and goes on with a wrong one, so nobody else can tell: the
 * counters travel to the sidecar with every request, and each failure is a line in the operator's log, as far as rate and
 * size allow. A log that cannot be written never keeps a look-up waiting. */
#include "shim.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW_MS = 10000, LINES_A_WINDOW = 10, MOST_BYTES = 1 << 20 };

static atomic_ulong lost[2], no_proof, fallbacks;
static atomic_long since;
static const char *_Atomic last_why = "none";

static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
static atomic_ulong held_back;
static int64_t window;
static int lines;

void journal_begin(void)
{
    pthread_mutex_init(&writing, NULL);
    lost[QUALITY] = lost[PROOF] = no_proof = fallbacks = held_back = 0;
    last_why = "none";
    since = (long)time(NULL);
}

int journal_header(char *text, size_t size)
{
    return snprintf(text, size,
                    "X-Shim-Failures: qualities=%lu proofs=%lu fallbacks=%lu pid=%ld since=%ld why=%s no_proof=%lu\r\n",
                    lost[QUALITY], lost[PROOF], fallbacks, (long)getpid(), since, last_why, no_proof);
}

static int open_log(void)
{
    /* Without waiting, should it be a pipe; a link would let others choose what grows. */
    return open(settings.log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0600);
}

static int open_log_with_room(void)
{
    char old[sizeof settings.log_path + 2];
    struct stat seen;
    const int fd = open_log();
    if (fd < 0 || (!fstat(fd, &seen) && S_ISREG(seen.st_mode) && seen.st_size < MOST_BYTES))
        return fd;
    close(fd);
    if (!S_ISREG(seen.st_mode))
        return -1;
    snprintf(old, sizeof old, "%s.1", settings.log_path);
    return rename(settings.log_path, old) ? -1 : open_log();
}

static void write_line(const char *words)
{
    char line[600], moment[32];
    struct tm parts;
    const time_t seconds = time(NULL);
    const unsigned long more = atomic_exchange(&held_back, 0);
    strftime(moment, sizeof moment, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &parts));
    int size = snprintf(line, sizeof line, "%s pid=%ld %s", moment, (long)getpid(), words);
    if (more)
        size += snprintf(line + size, sizeof line - (size_t)size, " (%lu more before)", more);
    line[size++] = '\n';
    const int fd = open_log_with_room();
    if (fd < 0 || write(fd, line, (size_t)size) != size)
        atomic_fetch_add(&held_back, more + 1);
    if (fd >= 0)
        close(fd);
}

void journal_say(const char *words)
{
    if (!settings.log_path[0])
        return;
    if (pthread_mutex_trylock(&writing)) { /* nobody waits for another's line */
        held_back++;
        return;
    }
    if (now_ms() - window >= WINDOW_MS) {
        window = now_ms();
        lines = 0;
    }
    if (lines++ < LINES_A_WINDOW)
        write_line(words);
    else
        held_back++;
    pthread_mutex_unlock(&writing);
}

static void say(const struct call *call, const char *why, const char *then)
{
    char words[300], status[16] = "", plot[17] = "";
    if (call->status)
        snprintf(status, sizeof status, " %d", call->status);
    for (int i = 0; i < 8; i++)
        snprintf(plot + 2 * i, 3, "%02x", call->plot_id[i]);
    snprintf(words, sizeof words, "%s C%u %s%s %lldms id=%s plot=%s%s", call->kind == PROOF ? "proof" : "quality",
             call->level, why, status, (long long)(now_ms() - call->began), call->id, plot, then);
    journal_say(words);
}

void journal_lost(const struct call *call)
{
    lost[call->kind]++;
    last_why = call->why;
    say(call, call->why, "");
}

void journal_no_proof(const struct call *call)
{
    no_proof++;
    say(call, "no_proof", "");
}

void journal_fell_back(const struct call *call)
{
    fallbacks++;
    last_why = call->why;
    say(call, call->why, " answered by the bundled library");
}
