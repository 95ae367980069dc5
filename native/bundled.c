/* The library that chiapos came with. A shared copy would call back into the shim, whose names come first, so it is opened
 * in a name space of its own. It does one thing at a time, in one context a level, made when it is first needed: each takes
 * up to 334 MB, and one that has served a higher level fails proofs of a lower one. */
#include "shim.h"
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released;
static bool busy, looked_for;
static gr_config configured = {.version = GR_VERSION, .threads = 1, .no_affinity = 1};
static gr_context *contexts[GR_LEVELS + 1];
static struct {
    gr_result (*create)(gr_context **, gr_config *, size_t);
    gr_result (*proof)(gr_context *, gr_proof *);
    gr_result (*quality)(gr_context *, gr_quality *);
} bundled;

/* Also what a forked child begins with: the threads of the parent's context are not there. */
__attribute__((constructor)) void bundled_forget(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&released, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&guard, NULL);
    busy = false;
    memset(contexts, 0, sizeof contexts);
}

void bundled_configure(const gr_config *config)
{
    pthread_mutex_lock(&guard);
    configured = *config;
    configured.first_cpu = 0;
    pthread_mutex_unlock(&guard);
}

static bool acquire(int64_t deadline)
{
    const struct timespec until = {.tv_sec = deadline / 1000, .tv_nsec = deadline % 1000 * 1000000};
    int fault = 0;
    pthread_mutex_lock(&guard);
    while (busy && fault != ETIMEDOUT)
        fault = pthread_cond_timedwait(&released, &guard, &until);
    const bool mine = !busy;
    busy = true;
    pthread_mutex_unlock(&guard);
    return mine;
}

static void release(void)
{
    pthread_mutex_lock(&guard);
    busy = false;
    pthread_cond_signal(&released);
    pthread_mutex_unlock(&guard);
}

static int note_path(struct dl_phdr_info *object, size_t size, void *path)
{
    (void)size;
    const char *slash = strrchr(object->dlpi_name, '/');
    if (!slash || strncmp(slash + 1, "libbladebit_harvester", 21) || strlen(object->dlpi_name) >= 4096)
        return 0;
    strcpy(path, object->dlpi_name);
    return 1;
}

static void open_library(void)
{
    char path[4096] = "";
    looked_for = true;
    dl_iterate_phdr(note_path, path);
    void *library = path[0] ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        journal_say(path[0] ? "the bundled library cannot be opened" : "the bundled library is not loaded");
        return;
    }
    *(void **)&bundled.create = dlsym(library, "grCreateContext");
    *(void **)&bundled.proof = dlsym(library, "grFetchProofForChallenge");
    *(void **)&bundled.quality = dlsym(library, "grGetFetchQualitiesXPair");
}

/* With the library to oneself: its context for a level, or NULL. */
static gr_context *prepared(uint32_t level)
{
    if (!looked_for)
        open_library();
    if (level > GR_LEVELS || !bundled.create || !bundled.proof || !bundled.quality)
        return NULL;
    pthread_mutex_lock(&guard);
    gr_config config = configured;
    pthread_mutex_unlock(&guard);
    gr_context **context = &contexts[level];
    return *context || bundled.create(context, &config, sizeof config) == GR_OK ? *context : NULL;
}

int bundled_proof(gr_proof *proof, int64_t deadline)
{
    if (!acquire(deadline))
        return -1;
    gr_context *context = prepared(proof->level);
    const int result = context ? (int)bundled.proof(context, proof) : -1;
    release();
    return result;
}

int bundled_quality(gr_quality *quality, int64_t deadline)
{
    if (!acquire(deadline))
        return -1;
    gr_context *context = prepared(quality->level);
    const int result = context ? (int)bundled.quality(context, quality) : -1;
    release();
    return result;
}
