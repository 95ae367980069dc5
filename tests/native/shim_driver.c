/* Drives the shim from many threads, for runs under sanitizers. usage: shim_driver THREADS ROUNDS FORKS
 * Exit status 0 where every call that gave GR_OK gave the numbers that the test's sidecar sends. Prints how many did. */
#include "../../native/gr.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int good, failed, wrong;
static int rounds;

static void ask_proof(gr_context *context, const uint8_t *plot_id)
{
    gr_proof proof;
    memset(&proof, 0x5a, sizeof proof);
    proof.level = 1;
    proof.plot_id = plot_id;
    if (grFetchProofForChallenge(context, &proof) != GR_OK) {
        failed++;
        return;
    }
    good++;
    for (int i = 0; i < GR_XS; i++)
        wrong += proof.numbers[i] != (uint64_t)(1000 + i);
}

static void ask_quality(gr_context *context, const uint8_t *plot_id, uint32_t level)
{
    gr_quality quality; /* the second line point stays as it is below level 6, as the stock prover leaves it */
    memset(&quality, 0xff, sizeof quality);
    quality.plot_id = quality.challenge = plot_id;
    quality.level = level;
    if (grGetFetchQualitiesXPair(context, &quality) != GR_OK) {
        failed++;
        return;
    }
    good++;
    wrong += quality.smaller != 7 || quality.larger != 9;
}

static void *harvest(void *ignored)
{
    uint8_t *plot_id = malloc(32); /* exactly as long as may be read */
    gr_config config = {.version = GR_VERSION, .threads = 1};
    gr_context *context = NULL;
    gr_info info;
    (void)ignored;
    memset(plot_id, 0xa5, 32);
    wrong += grCreateContext(&context, &config, sizeof config) != GR_OK;
    for (int round = 0; round < rounds; round++) {
        wrong += grGetCompressionInfo(&info, sizeof info, 32, 1 + (uint32_t)round % 9) != GR_OK;
        ask_proof(context, plot_id);
        ask_quality(context, plot_id, 1 + (uint32_t)round % 9);
    }
    grDestroyContext(context);
    free(plot_id);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[64];
    const int count = argc > 3 ? atoi(argv[1]) : 0;
    if (count < 1 || count > 64)
        return 2;
    rounds = atoi(argv[2]);
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, harvest, NULL);
    for (int forks = atoi(argv[3]); forks > 0; forks--) {
        int status = 0;
        const pid_t child = fork();
        if (child == 0) {
            rounds = 1;
            wrong = 0;
            harvest(NULL);
            _exit(wrong != 0);
        }
        wrong += waitpid(child, &status, 0) != child || status != 0;
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    printf("good=%d failed=%d wrong=%d\n", good, failed, wrong);
    return wrong != 0;
}
