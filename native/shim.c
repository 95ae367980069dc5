/* The seven functions. Whatever needs computing is asked of the sidecar; the rest is answered here, since the stock prover
 * asks for the format of a level once for each park it reads. */
#include "shim.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { K = 32, MOST_POOL_LEVEL = 7, TWO_LINE_POINTS_FROM = 6 };

static const gr_info formats[GR_LEVELS + 1] = {
    [1] = {16, 29, 8336, 2.51}, [2] = {15, 25, 7360, 3.44}, [3] = {14, 21, 6352, 4.36},
    [4] = {13, 16, 5325, 9.30}, [5] = {12, 12, 4300, 9.30}, [6] = {11, 8, 3273, 9.10},
    [7] = {10, 4, 2250, 8.60},  [8] = {9, 4, 6350, 8.60},   [9] = {8, 30, 8808, 4.54},
};
static char token; /* what all contexts are */

GR_EXPORTED gr_result grCreateContext(gr_context **context, gr_config *config, size_t size)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!context || !config)
        return GR_INVALID_ARGUMENT;
    if (size != sizeof *config || config->version != GR_VERSION)
        return GR_WRONG_VERSION;
    if (!atomic_flag_test_and_set(&told)) {
        bundled_configure(config);
        if (settings.complaint[0])
            journal_say(settings.complaint);
    }
    *context = (gr_context *)&token;
    return GR_OK;
}

GR_EXPORTED void grDestroyContext(gr_context *context)
{
    (void)context;
}

GR_EXPORTED gr_result grPreallocateForCompressionLevel(gr_context *context, uint32_t k, uint32_t level)
{
    return context && k == K && level <= GR_LEVELS ? GR_OK : GR_INVALID_ARGUMENT;
}

GR_EXPORTED int32_t grHasGpuDecompressor(gr_context *context)
{
    (void)context;
    return 0; /* where there is one, chia makes no second context */
}

GR_EXPORTED gr_result grGetCompressionInfo(gr_info *info, size_t size, uint32_t k, uint32_t level)
{
    if (!info)
        return GR_INVALID_ARGUMENT;
    if (size != sizeof *info)
        return GR_WRONG_VERSION;
    if (k != K || level < 1 || level > GR_LEVELS)
        return GR_INVALID_ARGUMENT;
    *info = formats[level];
    return GR_OK;
}

static struct call begin(enum kind kind, uint32_t level, const uint8_t *plot_id)
{
    static atomic_ulong number;
    struct call call = {.kind = kind, .level = level, .plot_id = plot_id, .began = now_ms(), .why = "unsupported"};
    /* Where the bundled library may have to answer, some of the time is left for it. */
    call.deadline = call.began + (settings.fall_back == FALL_BACK_AWAY ? settings.timeout_ms * 2 / 3 : settings.timeout_ms);
    snprintf(call.id, sizeof call.id, "shim-%ld-%lu", (long)getpid(), ++number);
    return call;
}

static gr_result ask_pool(struct call *call, const char *path, const char *body, uint8_t *answer, size_t size)
{
    if (settings.fall_back == FALL_BACK_ALWAYS || call->level < 1 || call->level > MOST_POOL_LEVEL)
        return GR_FAILED;
    const gr_result result = exchange(call, path, body, answer, size);
    if (result == GR_NO_PROOF)
        journal_no_proof(call);
    return result;
}

/* What the bundled library's result, where it was asked, makes of a call that the pool did not answer. */
static gr_result end(struct call *call, bool asked, int result)
{
    if (asked && (result == GR_OK || result == GR_NO_PROOF)) {
        if (settings.fall_back == FALL_BACK_AWAY && call->level <= MOST_POOL_LEVEL)
            journal_fell_back(call);
        return (gr_result)result;
    }
    if (asked)
        call->why = "bundled";
    journal_lost(call);
    return asked && result > 0 ? (gr_result)result : GR_FAILED;
}

static size_t put_hex(char *text, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return 2 * count;
}

static uint32_t big_endian(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

GR_EXPORTED gr_result grFetchProofForChallenge(gr_context *context, gr_proof *proof)
{
    char body[1024], plot_id[65];
    uint8_t answer[4 * GR_XS];
    if (!context || !proof || !proof->plot_id)
        return GR_INVALID_ARGUMENT;
    struct call call = begin(PROOF, proof->level, proof->plot_id);
    put_hex(plot_id, proof->plot_id, 32);
    size_t at = (size_t)snprintf(body, sizeof body, "{\"plot_id\":\"%s\",\"k\":%d,\"level\":%" PRIu32 ",\"line_points\":[",
                                 plot_id, K, proof->level);
    for (int i = 0; i < GR_PAIRS; i++)
        at += (size_t)snprintf(body + at, sizeof body - at, "%s\"%" PRIx64 "\"", i ? "," : "", proof->numbers[i]);
    snprintf(body + at, sizeof body - at, "]}");
    const gr_result result = ask_pool(&call, "/v1/proofs", body, answer, sizeof answer);
    for (int i = 0; result == GR_OK && i < GR_XS; i++)
        proof->numbers[i] = big_endian(answer + 4 * i);
    if (result != GR_FAILED)
        return result;
    const bool asked = settings.fall_back != FALL_BACK_NEVER;
    return end(&call, asked, asked ? bundled_proof(proof, call.began + settings.timeout_ms) : -1);
}

static int put_wide(char *text, size_t size, uint64_t high, uint64_t low)
{
    return high ? snprintf(text, size, "\"%" PRIx64 "%016" PRIx64 "\"", high, low) : snprintf(text, size, "\"%" PRIx64 "\"", low);
}

GR_EXPORTED gr_result grGetFetchQualitiesXPair(gr_context *context, gr_quality *quality)
{
    char body[512], plot_id[65], challenge[65], first[40], second[40] = "";
    uint8_t answer[8];
    if (!context || !quality || !quality->plot_id || !quality->challenge)
        return GR_INVALID_ARGUMENT;
    struct call call = begin(QUALITY, quality->level, quality->plot_id);
    put_hex(plot_id, quality->plot_id, 32);
    put_hex(challenge, quality->challenge, 32);
    put_wide(first, sizeof first, quality->line_points[0].high, quality->line_points[0].low);
    if (quality->level >= TWO_LINE_POINTS_FROM)
        put_wide(second, sizeof second, quality->line_points[1].high, quality->line_points[1].low);
    snprintf(body, sizeof body,
             "{\"plot_id\":\"%s\",\"challenge\":\"%s\",\"k\":%d,\"level\":%" PRIu32 ",\"line_points\":[%s%s%s]}", plot_id,
             challenge, K, quality->level, first, second[0] ? "," : "", second);
    const gr_result result = ask_pool(&call, "/v1/qualities", body, answer, sizeof answer);
    if (result == GR_OK) {
        quality->smaller = big_endian(answer);
        quality->larger = big_endian(answer + 4);
    }
    if (result != GR_FAILED)
        return result;
    const bool asked = settings.fall_back != FALL_BACK_NEVER;
    return end(&call, asked, asked ? bundled_quality(quality, call.began + settings.timeout_ms) : -1);
}
